"""Window: how much one side of a line has said that the other has not taken yet.

In: sizes of messages, the other side's word of what it took. Out: whether more may be said, what to tell.
Never: touches a socket or the clock.

ZeroMQ tells nobody what became of a message, and its own limits count messages, not bytes. So both
sides count both. The number matters as well as the bytes: a connection whose peer reaches libzmq's
limit and then ends loses what had come but was not read, so nobody is to reach it.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import ProtocolError

WINDOW = 8 << 20
"""Bytes that may be on their way; one message may go beyond."""
MESSAGES = 1024
"""Messages that may be on their way."""
OVERHEAD = 64
"""What a message is worth beside its bytes: about what it occupies in the queues on its way."""
_STEP = 128 << 10
_STEPS = 8
"""The other side is told when so much was taken, or so many parts of the messages that may be under way."""


class Count(NamedTuple):
    nbytes: int = 0
    messages: int = 0

    def __sub__(self, other: Count) -> Count:
        return Count(self.nbytes - other.nbytes, self.messages - other.messages)

    def more(self, nbytes: int) -> Count:
        """With one message more."""
        return Count(self.nbytes + nbytes + OVERHEAD, self.messages + 1)


class Window:
    """Both directions of one line."""

    __slots__ = ("heard", "said", "taken", "told")

    def __init__(self) -> None:
        self.said = Count()
        self.heard = Count()
        """Of :attr:`said`, as far as the other side has told."""
        self.taken = Count()
        self.told = Count()
        """Of :attr:`taken`, as far as the other side knows."""

    @property
    def outstanding(self) -> Count:
        """Said, and not known to be taken."""
        return self.said - self.heard

    @property
    def open(self) -> bool:
        """Whether more may be said."""
        said, heard = self.said, self.heard
        return said[0] - heard[0] < WINDOW and said[1] - heard[1] < MESSAGES

    @property
    def untold(self) -> int:
        """Bytes that were taken, and the other side does not know."""
        return self.taken[0] - self.told[0]

    @property
    def worth_telling(self) -> bool:
        """Whether the other side may be waiting for it."""
        taken, told = self.taken, self.told
        return taken[0] - told[0] >= _STEP or taken[1] - told[1] >= MESSAGES // _STEPS

    def say(self, nbytes: int) -> None:
        """A message leaves."""
        self.said = self.said.more(nbytes)

    def take(self, nbytes: int) -> None:
        """A message has been taken."""
        self.taken = self.taken.more(nbytes)

    def tell(self) -> Count:
        """What to tell the other side, which knows it from now on."""
        self.told = self.taken
        return self.taken

    def hear(self, nbytes: int, messages: int) -> None:
        """The other side tells what it has taken.

        Raises:
            ProtocolError: it cannot have taken that much.
        """
        if nbytes > self.said.nbytes or messages > self.said.messages:
            raise ProtocolError(
                f"it has taken {messages} messages, {nbytes} bytes; it was sent {self.said.messages}, "
                f"{self.said.nbytes}"
            )
        if messages > self.heard.messages:
            self.heard = Count(nbytes, messages)
