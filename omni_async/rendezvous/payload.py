"""A payload on offer: where its frames lie, and the leases that keep them there.

In: frame sizes, places, leases. Out: the Offer word of one operation.
Never: looks into the bytes; never frees, it only drops its holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .messages import Offer, PlaceWord


class SlotLease(Protocol):
    """What the rendezvous needs of a pool's lease."""

    def pin(self) -> None: ...
    def unpin(self) -> None: ...
    def drop(self) -> None: ...
    def quarantine(self) -> None: ...


class Droppable(Protocol):
    """Something that is of use for as long as a payload is on offer."""

    def drop(self) -> None: ...


class Payload:
    """Bytes that a sender keeps for its receivers."""

    __slots__ = (
        "apart",
        "fast",
        "filling",
        "form",
        "inline",
        "leases",
        "mark",
        "mark_place",
        "nbytes",
        "places",
        "sizes",
    )

    def __init__(
        self,
        nbytes: int,
        sizes: list[int],
        *,
        places: list[PlaceWord],
        apart: list[int],
        leases: Sequence[SlotLease] = (),
        inline: bytes | None = None,
        fast: bool = False,
        mark: memoryview | None = None,
        mark_place: PlaceWord | None = None,
    ) -> None:
        self.nbytes = nbytes
        self.sizes = sizes
        self.places = places
        self.apart = apart
        self.leases = leases
        self.inline = inline
        self.fast = fast
        self.mark = mark
        """A byte that the receiver sets when its get returns, before its word can be here."""
        self.mark_place = mark_place
        self.filling: Any = None
        """Whoever knows how much of the packed slot is there, while it is still being copied."""
        self.form: Droppable | None = None
        """The same in a form for another wire, once somebody has asked for it."""

    def offer(self, op: int, shared: bool) -> Offer:
        """The word that tells a receiver of this payload."""
        return Offer(
            op,
            self.nbytes,
            self.sizes,
            self.places,
            self.apart,
            self.inline,
            self.fast,
            shared,
            None if shared else self.mark_place,
        )

    @property
    def consumed(self) -> bool:
        """Whether its only receiver has left its mark."""
        return self.mark is not None and self.mark[0] != 0

    def pin(self) -> None:
        """A receiver has claimed it."""
        for lease in self.leases:
            lease.pin()

    def unpin(self) -> None:
        """That claim has ended and its peer touches the memory no more."""
        for lease in self.leases:
            lease.unpin()

    def drop(self) -> None:
        """Nobody is to get it any more; the slots go back once no pin is left."""
        for lease in self.leases:
            lease.drop()
        if self.form is not None:
            self.form.drop()

    def quarantine(self) -> None:
        """The peer of a claim cannot be asked any more, and may still touch the memory."""
        for lease in self.leases:
            lease.quarantine()
