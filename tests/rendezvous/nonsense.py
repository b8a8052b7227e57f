"""Nonsense for a sender's port: messages that are nearly right, and messages that are not.

In: a source of chance, a few interesting messages. Out: as many others as are wanted.
Never: sends.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from omni_async.rendezvous.messages import (
    Ahead,
    Bye,
    Cancel,
    Chunk,
    Credit,
    Done,
    End,
    Fail,
    FailCode,
    Heard,
    Hello,
    Message,
    Offer,
    Open,
    Ping,
    PlaceWord,
    Pull,
    Recall,
    Regions,
    RegionWord,
    Release,
    Segment,
    Want,
    encode,
)
from tests.rendezvous.lines import hello

CORPUS = Path(__file__).parent / "corpus.txt"

LARGE = (-1, 1, 2**31, 2**32, 2**63 - 1, -(2**63), 2**64 - 1)


def corpus() -> dict[str, list[bytes]]:
    """Interesting messages by name, each as its frames."""
    found = {}
    for line in CORPUS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, frames = line.partition(":")
            found[name] = [bytes.fromhex(frame.removeprefix("-")) for frame in frames.split()]
    return found


def words(namespace: str) -> list[Message]:
    """One of each, as a receiver or a sender would say it."""
    place = PlaceWord(1, 4096, 100, 1)
    offer = Offer(7, 100, [4, 96], [place], [], None)
    return [
        hello("receiver", namespace),
        hello("sender", namespace),
        Regions([RegionWord(1, 4096, 1 << 20, b"descriptor", False)], [2]),
        Want(7, "0", "1", "key"),
        Want(8, "0", "1", "key", False),
        offer,
        Pull(7, [place]),
        Done(7),
        Fail(7, FailCode.ENGINE, "text"),
        Cancel(7),
        Release(7, True),
        Credit(7, 10, 5),
        Ping(),
        Heard(100, 1),
        Ahead("0", "1", "key", offer),
        Recall(-1),
        Open(9, "0", "1", "key", 8),
        Chunk(9, 0, [4, 10], b"0123456789abcd"),
        Segment(9, 1),
        End(9, 2),
        Bye("over", [7]),
        Bye("over"),
    ]


class Nonsense:
    """Made of chance, the same for the same seed."""

    def __init__(self, seed: int, namespace: str) -> None:
        self.dice = random.Random(seed)
        known = words(namespace)
        self._words = [encode(word) for word in known]
        # Those behind which a line goes on, whatever is in them.
        self._lasting = [encode(w) for w in known if not isinstance(w, (Hello, Heard, Bye))]
        self._corpus = list(corpus().values())

    def first(self) -> list[bytes]:
        """The frames of a message from somebody unknown."""
        dice = self.dice
        kind = dice.randrange(8)
        if kind == 0:
            return [dice.randbytes(dice.randrange(600))]
        if kind == 1:
            return [self.mutated(frame) for frame in dice.choice(self._corpus)]
        if kind == 2:
            return list(dice.choice(self._corpus))
        if kind == 3:
            return [dice.randbytes(dice.randrange(20)) for _ in range(dice.randrange(1, 8))]
        if kind == 4:
            return [b"", self.body()]
        return [self.body()]

    def body(self) -> bytes:
        """Words in a message, most of them wrong somewhere."""
        dice = self.dice
        parts = [self.word() for _ in range(dice.choice((1, 1, 1, 2, 5)))]
        body = b"".join(struct.pack("<I", len(part)) + part for part in parts)
        return self.mutated(body) if dice.random() < 0.03 else body

    def word(self) -> bytes:
        dice = self.dice
        kind = dice.randrange(60)
        if kind > 3:
            tag, *fields = msgspec.msgpack.decode(dice.choice(self._lasting))
            return msgspec.msgpack.encode([tag, *map(self.varied, fields)])
        if kind == 0:
            return self.mutated(dice.choice(self._words))
        if kind == 1:
            return dice.choice(self._words)
        if kind == 2:
            wrong: Any = msgspec.msgpack.decode(dice.choice(self._words))
            wrong[dice.randrange(len(wrong))] = self.value(2)
            return msgspec.msgpack.encode(wrong)
        return msgspec.msgpack.encode([dice.randrange(24), *self.values(2)])

    def varied(self, value: Any) -> Any:
        """Another value of the same kind."""
        dice = self.dice
        if isinstance(value, list):
            varied = [self.varied(item) for item in value]
            return varied if dice.random() < 0.8 else varied[: dice.randrange(len(value) + 1)] * 3
        if value is None or dice.random() < 0.5:
            return value
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return dice.choice((dice.randrange(-2, 20), value + 1, *LARGE[:5]))
        if isinstance(value, str):
            return dice.choice(("", "0", "1", "2", "key", "good 1", "x" * 200))
        return dice.randbytes(dice.randrange(40))

    def value(self, depth: int) -> Any:
        dice = self.dice
        kind = dice.randrange(9 if depth else 7)
        if kind < 2:
            return dice.randrange(-3, 300)
        if kind == 2:
            return dice.choice(LARGE)
        if kind == 3:
            return dice.choice(("", "0", "1", "key", "x" * 500, "\0", "é"))
        if kind == 4:
            return dice.randbytes(dice.randrange(50))
        if kind == 5:
            return dice.choice((None, True, False))
        if kind == 6:
            return dice.choice((0.5, float("nan"), float("inf")))
        if kind == 7:
            return self.values(depth - 1)
        return {"key": self.value(depth - 1)}

    def values(self, depth: int) -> list[Any]:
        return [self.value(depth) for _ in range(self.dice.randrange(8))]

    def mutated(self, data: bytes) -> bytes:
        dice = self.dice
        changed = bytearray(data)
        for _ in range(dice.choice((1, 1, 2, 8))):
            kind = dice.randrange(6)
            at = dice.randrange(len(changed) + 1)
            if kind == 0 and at < len(changed):
                changed[at] ^= 1 << dice.randrange(8)
            elif kind == 1:
                del changed[at:]
            elif kind == 2:
                changed[at:at] = dice.randbytes(dice.randrange(1, 9))
            elif kind == 3:
                changed[at : at + 4] = struct.pack(
                    "<I", dice.choice((0, 1, 255, 1 << 30, 2**32 - 1))
                )
            elif kind == 4:
                other = dice.choice(self._words)
                changed[at:] = other[dice.randrange(len(other)) :]
            elif at:
                changed += changed[:at]
        return bytes(changed[:5000])

    def streams(self) -> Iterator[bytes]:
        """What begins a connection of ZeroMQ, wrong somewhere."""
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\x00" + bytes(31)
        ready = (
            b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
        )
        message = b"\x00\x05hello" + b"\x02" + struct.pack(">Q", 1 << 40)
        while True:
            yield self.mutated(greeting + ready + message)
