"""One post to a peer, a write or a part of it, as the engine's thread moves it on.

In: pieces that were checked, a contact. Out: its end, told to the contact once.
Never: is called from another thread, or after an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ...errors import EngineFault
from ._native import Place, Transfer
from .contact import Contact, Target

SLOW = 0.5e9
"""Bytes a second: a write that takes longer than so, and a moment more, is asked about now and then only."""
MOMENT = 0.002


class Writing:
    """What the thread prepares, starts and asks about.

    Args:
        here: where the bytes are.
        targets: the regions they go to.
        there: where they go, in the same order.
    """

    def __init__(
        self, contact: Contact, here: list[Place], targets: Collection[Target], there: list[Place]
    ) -> None:
        self._contact = contact
        self._pieces = here, targets, there
        self._transfer: Transfer
        self.length = sum([nbytes for _, nbytes, _ in here])
        self.eager = self.length / SLOW + MOMENT

    def prepare(self) -> None:
        """Have the vendor make the transfer, and learn what it does not know yet."""
        self._transfer = self._contact.begin(*self._pieces)

    def start(self) -> None:
        """Blocks for as long as it takes where the kernel copies between the processes."""
        with self._failing():
            self._transfer.post()

    def over(self) -> bool:
        """Whether the bytes are in place; moves some of them."""
        with self._failing():
            over = self._transfer.ended()
        if over:
            self._contact.ended(well=True)
        return over

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except EngineFault:
            self._contact.ended(well=False)
            raise
