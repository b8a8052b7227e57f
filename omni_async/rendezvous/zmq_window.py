"""Window: how much one side of a line has said that the other has not taken yet.

In: sizes of messages, the other side's word of what it took. Out: whether more may be said, what to tell.
Never: touches a socket or the clock.

ZeroMQ tells nobody what became of a message, and its own limits count messages, not bytes. So both
sides count: a message is worth its bytes and :data:`OVERHEAD`, which is about what it occupies in the
queues on its way.
"""

from __future__ import annotations

from ..errors import ProtocolError

WINDOW = 8 << 20
"""What may be on its way; one message may go beyond."""
STEP = 128 << 10
"""What is taken before the other side is told."""
OVERHEAD = 256


class Window:
    """Both directions of one line."""

    __slots__ = ("heard", "said", "taken", "told")

    def __init__(self) -> None:
        self.said = 0
        self.heard = 0
        """Of :attr:`said`, as far as the other side has told."""
        self.taken = 0
        self.told = 0
        """Of :attr:`taken`, as far as the other side knows."""

    @property
    def outstanding(self) -> int:
        """Said, and not known to be taken."""
        return self.said - self.heard

    @property
    def open(self) -> bool:
        """Whether more may be said."""
        return self.said - self.heard < WINDOW

    @property
    def untold(self) -> int:
        """Taken, and the other side does not know."""
        return self.taken - self.told

    def say(self, nbytes: int) -> None:
        """A message leaves."""
        self.said += nbytes + OVERHEAD

    def take(self, nbytes: int) -> None:
        """A message has been taken."""
        self.taken += nbytes + OVERHEAD

    def tell(self) -> int:
        """What to tell the other side, which knows it from now on."""
        self.told = self.taken
        return self.taken

    def hear(self, total: int) -> None:
        """The other side tells what it has taken.

        Raises:
            ProtocolError: it cannot have taken that much.
        """
        if total > self.said:
            raise ProtocolError(f"it has taken {total} bytes of {self.said}")
        self.heard = max(self.heard, total)
