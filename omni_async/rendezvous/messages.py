"""The words of the wire, version :data:`WIRE`.

In: structs. Out: MessagePack arrays, tag first.
Never: interprets a word. Operation ids are chosen by the receiver and grow; those of offers made ahead
are chosen by the sender, are negative and fall. Neither is used twice on one line.

=========  ==============  =================================================================
word       who says it     meaning
=========  ==============  =================================================================
Hello      both, first     who I am, which wire I speak, where my engine is
Regions    owner           these regions exist now (descriptors travel beside the word)
Want       receiver        I wait for this key (or: is it there now, ``park`` false)
Offer      sender          here it is: inline, or where it lies and how long it is
Ahead      sender          an offer before anybody asked; its operation ids are negative
Recall     sender          give an offer made ahead back, unless a get has taken it
Pull       receiver        (WRITE) write it here
Done       engine's side   TRANS_DONE: (WRITE, sender) the bytes have landed;
                           (MAP, receiver) the payload is consumed, its memory still read
Fail       sender          TRANS_ERROR: this operation has ended without a payload
Cancel     receiver        I no longer want this; a Pull is still answered by Done or Fail;
                           of a stream: I have left it
Release    receiver        I will not touch your memory for this operation any more;
                           ``consumed`` tells whether the payload was delivered;
                           of a stream: all of it is here
Open       reader          I read this stream from its begin; ``credit`` chunks may be sent
Chunk      writer          the next item of a stream: inline, or filed under a key
Segment    writer          a boundary inside a stream that goes on
End        writer          the stream is over: finished, or aborted with a reason
Credit     reader          so many chunks of this stream may be sent, all in all
Aside      both            words of a room above that shares this line (KV caches), opaque here
Ping       both            a sign of life
Heard      both            (between hosts) how much of what you said has been taken here
Bye        both            orderly end; ``held`` are operations whose memory is still read
=========  ==============  =================================================================
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

WIRE = 1
"""Version of this wire. A peer with another one is refused in the handshake."""


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all words. They hold plain values only: the garbage collector need not look at them."""


class Hello(Message, tag=1):
    wire: int
    incarnation: str
    """New with every opening of a transport, so a restarted peer is told from a returning one."""
    role: str
    namespace: str
    stage: str
    rank: int
    replica: int
    pid: int
    backend: str
    verb: str
    engine: bytes = b""
    clock: int = 0
    """Ends with the same number, not 0, read the same monotonic clock."""
    protocol: str = ""
    """How bytes travel between the engines, where there is a choice."""


class RegionWord(msgspec.Struct, array_like=True, gc=False):
    id: int
    address: int
    nbytes: int
    descriptor: bytes
    has_fd: bool


class Regions(Message, tag=2):
    added: list[RegionWord]
    removed: list[int] = []


class Want(Message, tag=3):
    op: int
    from_stage: str
    to_stage: str
    key: str
    park: bool = True


class PlaceWord(msgspec.Struct, array_like=True, gc=False):
    region: int
    offset: int
    nbytes: int
    generation: int


class Offer(Message, tag=4):
    op: int
    nbytes: int
    """Payload size as ``Receipt.nbytes`` tells it."""
    sizes: list[int]
    """Bytes of each frame; frame 0 is the codec's header."""
    places: list[PlaceWord]
    """Where frames lie: first the packed slot, then one for each of ``apart``."""
    apart: list[int]
    """Frames that lie in a slot of their own instead of the packed one."""
    inline: bytes | None = None
    """All frames, packed, when the payload is small."""
    fast: bool = False
    """The payload is one buffer (tensor, bytes, ManagedBuffer): frame 1."""
    shared: bool = False
    """Other receivers may read the same memory."""
    mark: PlaceWord | None = None
    """(MAP) A byte to set when the get returns: should the receiver die before its word is heard, the
    sender finds there that the payload was consumed."""


class Pull(Message, tag=5):
    op: int
    places: list[PlaceWord]
    """One per place of the offer, in order. None where all was READ already: is it still mine?"""


class Done(Message, tag=6):
    op: int


class FailCode(enum.IntEnum):
    NOT_FOUND = 1
    EXPIRED = 2
    CANCELLED = 3
    """Cleaned up by the sender."""
    ENGINE = 4
    REFUSED = 5
    """The receiver's own words made no sense (wrong length, unknown region)."""
    CLOSED = 6


class Fail(Message, tag=7):
    op: int
    code: FailCode
    text: str = ""


class Cancel(Message, tag=8):
    op: int


class Release(Message, tag=9):
    op: int
    consumed: bool


class Credit(Message, tag=10):
    op: int
    chunks: int
    """Counted from the stream's begin: said twice or late it changes nothing."""
    taken: int = 0
    """Chunks that the reader is done with, counted likewise."""


class Ping(Message, tag=11):
    pass


class Bye(Message, tag=12):
    reason: str = ""
    held: list[int] | None = None
    """``None``: a refusal or an error; it says nothing about memory."""


class Ahead(Message, tag=13):
    from_stage: str
    to_stage: str
    key: str
    offer: Offer


class Recall(Message, tag=14):
    op: int


class Open(Message, tag=15):
    op: int
    from_stage: str
    to_stage: str
    key: str
    credit: int


class Item(Message):
    """What follows in a stream; ``seq`` counts chunks, segments and the end together, from 0."""

    op: int
    seq: int


class Chunk(Item, tag=16):
    sizes: list[int]
    """Bytes of each frame; frame 0 is the codec's header."""
    inline: bytes | None = None
    """All frames, packed."""
    key: str = ""
    """A larger one: what its payload is put under, on the edge from ``""``, which is no stage's."""
    at: int = 0
    """When it was sent, in nanoseconds of the writer's monotonic clock; 0 says nothing."""


class Segment(Item, tag=17):
    pass


class End(Item, tag=18):
    reason: str | None = None
    """Why it was aborted; ``None`` when it has finished."""


class Heard(Message, tag=19):
    """What has been taken since the line began, so that said late or twice it changes nothing."""

    nbytes: int
    messages: int


class Aside(Message, tag=20):
    topic: str
    """Which room above; words of a topic that nobody here listens to are dropped."""
    body: bytes


AnyMessage = (
    Hello
    | Regions
    | Want
    | Offer
    | Pull
    | Done
    | Fail
    | Cancel
    | Release
    | Credit
    | Ping
    | Bye
    | Ahead
    | Recall
    | Open
    | Chunk
    | Segment
    | End
    | Heard
    | Aside
)

_encoder = msgspec.msgpack.Encoder()

encode = _encoder.encode
encode_into = _encoder.encode_into

decode: Callable[[bytes | bytearray | memoryview], AnyMessage]
decode = msgspec.msgpack.Decoder(AnyMessage).decode
"""One word from its bytes; ``msgspec.DecodeError`` where they are no word of this wire."""
