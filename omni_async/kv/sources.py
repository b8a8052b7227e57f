"""Where a consumer's producers are, and which rank each of them has to be.

In: ranks, endpoints, metadata. Out: addresses of lines that are kept.
Never: speaks to a producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..errors import ProtocolError, UsageError
from ..model import Endpoint
from ..transport.guests import GuestLine, Guests
from ..transport.senders import address as dialed
from .layout import KVLayout
from .names import told
from .plan import sources_of

Source = Mapping[str, Any] | int | Endpoint
"""One producer rank: its number among those that share the heads, or its whole name, where channels find it by name;
else ``source_host`` and ``source_port``."""

_WHAT = "a source is a rank's number, an Endpoint, or a mapping with source_host (str) and source_port (int)"


class Sources:
    """Those of one consumer.

    Args:
        told: where the producers are, unless a call says it.
        tp_size: how many ranks share a producer's heads, unless a call says it.
        stage, replica: of the producers, where channels find them by name.

    Raises:
        UsageError: heads that so many ranks cannot share.
    """

    def __init__(
        self,
        guests: Guests,
        layout: KVLayout,
        told: Source | Sequence[Source] | None,
        tp_size: int,
        stage: str | None,
        replica: int,
    ) -> None:
        self._guests = guests
        self._layout = layout
        self._told = told
        self._tp_size = tp_size
        self._stage = stage
        self._replica = replica
        self._kept: dict[Any, str] = {}
        """Where each producer is that was asked: its line is kept."""
        self.expected: dict[str, tuple[int, int]] = {}
        """Address → how many ranks there have to be, and which one."""
        sources_of(layout, tp_size)  # may refuse it

    def resolve(
        self,
        source: Source | Sequence[Source] | None,
        tp_size: int | None,
        ranks: Sequence[int] | None = None,
    ) -> list[tuple[str, tuple[int, int]]]:
        """An address for each rank, and who has to be there; their lines are kept from now on.

        Raises:
            UsageError: too many or too few, or of a kind that this backend does not find.
        """
        given = self._told if source is None else source
        tp = self._tp_size if tp_size is None else tp_size
        ranks = sources_of(self._layout, tp) if ranks is None else ranks
        items = list(ranks) if given is None else _listed(given)
        if len(items) != len(ranks):
            raise UsageError(
                f"this rank hears from {len(ranks)} ranks of its producer "
                f"({', '.join(map(str, ranks))}), and {len(items)} sources were told"
            )
        for item in items:
            self._check(item, ranks, tp)
        return [(self._keep(item), (tp, rank)) for item, rank in zip(items, ranks, strict=True)]

    def forget(self, source: Source) -> str | None:
        """Keep its line no longer; its address, where it was known."""
        address = self._kept.pop(_name_of(source), None)
        if address is not None:
            self.expected.pop(address, None)
            self._guests.leave_line(address)
        return address

    def address_of(self, source: Source) -> str | None:
        """Of one that was asked before.

        Raises:
            UsageError: that is no source.
        """
        _check_kind(source)
        return self._kept.get(_name_of(source))

    def keeps(self, address: str) -> bool:
        """Whether somebody there was asked."""
        return address in self._kept.values()

    def close(self) -> None:
        """Keep no line any longer. Idempotent."""
        for address in self._kept.values():
            self._guests.leave_line(address)
        self._kept.clear()

    def _check(self, item: Source, ranks: Sequence[int], tp_size: int) -> None:
        _check_kind(item)
        if isinstance(item, (Mapping, Endpoint)):
            return
        if not 0 <= item < tp_size:
            raise UsageError(
                f"{_WHAT}; there is no rank {item} among the {tp_size} that share the producer's heads (source_tp)"
            )
        found = self._guests.wiring.channels.address_of(self._endpoint(item))
        if not self._stage and found is not None:
            raise UsageError(
                "the producers of this backend are found by name: give from_stage, their stage"
            )
        if len(ranks) > 1 and found is None:
            raise UsageError(
                f"this rank hears from several ranks ({', '.join(map(str, ranks))}): give a source "
                "with source_host and source_port for each"
            )

    def _endpoint(self, rank: int) -> Endpoint:
        return Endpoint(self._guests.endpoint.namespace, self._stage or "", rank, self._replica)

    def _keep(self, item: Source) -> str:
        name = _name_of(item)
        if name not in self._kept:
            if isinstance(item, Mapping):
                self._kept[name] = self._guests.keep_line(None, item)
            else:
                named = item if isinstance(item, Endpoint) else self._endpoint(item)
                self._kept[name] = self._guests.keep_line(named, None)
        return self._kept[name]


def check_rank(line: GuestLine, theirs: KVLayout, wanted: tuple[int, int]) -> None:
    """Raise ProtocolError for another rank than is counted on."""
    if (theirs.tp_size, theirs.tp_rank) != wanted:
        raise ProtocolError(
            f"rank {wanted[1]} of {wanted[0]} was to be found there, and it is rank {theirs.tp_rank} "
            f"of {theirs.tp_size}: set source_tp and the sources to match",
            peer=line.name,
        )


def _listed(given: Source | Sequence[Source]) -> list[Source]:
    if isinstance(given, (Mapping, int, Endpoint)):
        return [given]
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        return list(cast("Sequence[Source]", given))
    raise UsageError(f"sources are told one by one, or in a list, not as {told(given)}: {_WHAT}")


def _check_kind(item: object) -> None:
    """Raise UsageError for what no producer can be found by."""
    try:
        if isinstance(item, Mapping):
            dialed(*_name_of(item))
            return
    except UsageError:
        pass  # is told below
    else:
        kinds = [type(part) for part in item] if isinstance(item, Endpoint) else [type(item)]
        if kinds in ([int], [str, str, int, int]):
            return
    raise UsageError(f"{_WHAT}, not {told(item)}")


def _name_of(source: Source) -> Any:
    if isinstance(source, Mapping):
        return source.get("source_host"), source.get("source_port")
    return source
