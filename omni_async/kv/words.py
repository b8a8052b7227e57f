"""What a producer and a consumer of KV caches say to each other, over a transport's line.

In: nothing. Out: tagged structs and their bytes.
Never: interprets them.

========  ==============  ==================================================================
word      who             meaning
========  ==============  ==================================================================
Meet      both            my layout, and where my caches lie; again when they lie elsewhere
Ask       consumer        I want this request's cache in these blocks
Room      consumer        (WRITE, staged) a landing slot for one more layer
Took      consumer        (READ, MAP) I have read these layers: were they yours to give all the time?
Drop      consumer        not any more; answered by an Ended after which nothing lands
Decline   consumer        I will never ask for this request
Leave     both            this end closes; there is no more of it on this line
Begun     producer        the cache is in these blocks
Ready     producer        (READ, MAP) these layers may be read
Landed    producer        these layers are in place, whole (TRANS_DONE of each)
Ended     producer        it fails (TRANS_ERROR); with ``under_way`` some writes may still land
========  ==============  ==================================================================
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from .layout import KVLayout

TOPIC = "kv"
VERSION = 1
"""Of these words. A peer with another one is refused."""

ALL = -1
"""As a number of tokens: all that the blocks have room for."""


class Mode(str, enum.Enum):
    """When bytes move; who moves them is the engine's business."""

    WRITE = "write"
    """Layer by layer, while the producer computes."""
    READ = "read"
    """All at once, when the producer has offered a cache that is ready."""


class Word(msgspec.Struct, array_like=True, gc=False):
    """Base of all words."""


class Spot(msgspec.Struct, array_like=True, gc=False):
    """Where one tensor begins: a region that was announced, and bytes into it."""

    region: int
    offset: int


class Meet(Word, tag=1):
    version: int
    layout: KVLayout
    spots: list[Spot]
    """Of each tensor, all of the first layer first."""
    end: int = 0
    """Which one of its process. Another number than before: that one is no more."""
    to: int = 0
    """Which one of the peer's it has heard of; 0: whoever is there. What follows is for that one alone."""
    asks: bool = False
    """To be told the same."""


class Ask(Word, tag=2):
    ticket: int
    """The consumer's own number for this transfer."""
    request_id: str
    blocks: list[int]
    mode: Mode
    staged: bool = False
    """(WRITE) Not into the blocks, where nothing could end a late write, but into landing slots."""


class Drop(Word, tag=3):
    ticket: int
    text: str = ""
    """Why, for people."""


class Took(Word, tag=4):
    ticket: int
    layers: list[int]


class Begun(Word, tag=5):
    ticket: int
    blocks: list[int]
    tokens: int
    staged: bool = False
    """(WRITE) It goes into landing slots (:class:`Room`): asked for, or the faster way for small pieces."""


class Ready(Word, tag=6):
    ticket: int
    layers: list[int]


class Landed(Word, tag=7):
    ticket: int
    layers: list[int]
    slots: list[int] = []
    """(staged) Into which landing slot each has been written."""


class Reason(enum.IntEnum):
    ABORTED = 1
    """The producer gave it up."""
    ENGINE = 2
    REFUSED = 3
    """What was asked for fits not what there is."""
    TIMEOUT = 4
    CLOSED = 5
    DROPPED = 6
    """The consumer said so."""


class Ended(Word, tag=8):
    ticket: int
    reason: Reason
    text: str
    under_way: bool


class Room(Word, tag=9):
    ticket: int
    slot: int
    region: int
    offset: int
    nbytes: int


class Decline(Word, tag=10):
    request_id: str
    text: str
    reason: Reason = Reason.DROPPED


class Leave(Word, tag=11):
    under_way: bool
    """Some writes or reads of it may not have ended."""


AnyWord = Meet | Ask | Drop | Took | Begun | Ready | Landed | Ended | Room | Decline | Leave

LONGEST_TEXT = 2000
"""Characters of a reason that are told; an exception's may have any number."""
MOST_BLOCKS = 1 << 20
"""Blocks of one request: all words of a line have a limit."""

_encode = msgspec.msgpack.Encoder().encode


def encode(word: AnyWord) -> bytes:
    """A word's bytes; a long reason is cut."""
    if isinstance(word, (Ended, Decline, Drop)) and len(word.text) > LONGEST_TEXT:
        word = msgspec.structs.replace(word, text=cut(word.text))
    return _encode(word)


def cut(text: str) -> str:
    """The begin of it, and how much there was, where it is longer than is told."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT - 40]}... ({len(text):,} characters)"


decode: Callable[[bytes], AnyWord] = msgspec.msgpack.Decoder(AnyWord).decode
"""One word from its bytes; ``msgspec.DecodeError`` where they are none."""
