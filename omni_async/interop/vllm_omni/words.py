"""The side channel of vLLM-Omni's ``MooncakeTransferEngineConnector``: exact bytes.

In: one request or one answer. Out: what it says, or why it says nothing.
Never: knows who sent it; raises anything but ``ProtocolError``.

=============================  ===================================  ====================================
request (receiver)             answer (sender)                      meaning
=============================  ===================================  ====================================
``query_info`` + Query         Info, or ``info_not_found``          what is under this key?
Pull                           ``trans_done`` or ``trans_error``    write it there; ``trans_done`` frees it
=============================  ===================================  ====================================

The capitalised ones are MessagePack maps by field name. Nothing on this wire has a version, an
operation id or a heartbeat; a receiver that waits for a key asks again and again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...errors import ProtocolError
from ...model import KEY_LIMIT, TransferKey

QUERY = b"query_info"
NOT_FOUND = b"info_not_found"
DONE = b"trans_done"
ERROR = b"trans_error"

BODY_LIMIT = 16 << 10
"""Bytes of a request or an answer; real ones have a few hundred."""
HOST_LIMIT = 255
_ADDRESS_END = 1 << 64


class Query(msgspec.Struct, frozen=True):
    """What is under this key?"""

    request_id: str
    """The routed key: see :func:`routed`."""


class Info(msgspec.Struct, frozen=True):
    """This is."""

    request_id: str
    data_size: int
    """Bytes that a write will move."""
    is_fast_path: bool
    """Raw bytes, without a word of their type and shape; else an object in MessagePack."""


class Pull(msgspec.Struct, frozen=True):
    """Write it here."""

    remote_hostname: str
    """With ``remote_port`` the receiver's engine, not its side channel."""
    remote_port: int
    request_id: str
    dst_addrs: list[int]
    """Addresses in the receiver's registered memory."""
    lengths: list[int]

    @property
    def session(self) -> str:
        """The receiver's engine, as engines name each other."""
        return f"{self.remote_hostname}:{self.remote_port}"


class Malformed(msgspec.Struct, frozen=True):
    """Not a request of this wire."""

    answer: bytes
    """What its sender is told."""
    why: str


Request = Query | Pull | Malformed

_encode = msgspec.msgpack.Encoder().encode
_query = msgspec.msgpack.Decoder(Query).decode
_pull = msgspec.msgpack.Decoder(Pull).decode
_info = msgspec.msgpack.Decoder(Info).decode

_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""What decoding runs into; a key that is no UTF-8 is a ValueError."""


def routed(where: TransferKey) -> str:
    """How a key is called on this wire."""
    return f"{where.key}@{where.from_stage}_{where.to_stage}"


def readings(request_id: str, from_stage: str) -> Iterator[TransferKey]:
    """The keys that a sender of ``from_stage`` may have called so: nearly always one.

    Keys and stages may hold the very signs that stand between them.
    """
    mark = f"@{from_stage}_"
    at = request_id.rfind(mark)
    while at > 0:
        to_stage = request_id[at + len(mark) :]
        if to_stage:
            yield TransferKey(from_stage, to_stage, request_id[:at])
        at = request_id.rfind(mark, 0, at + len(mark) - 1)


def query(where: TransferKey) -> bytes:
    """The request for a key's Info."""
    return QUERY + _encode(Query(routed(where)))


def pull(where: TransferKey, session: tuple[str, int], address: int, nbytes: int) -> bytes:
    """The request to write ``nbytes`` bytes to ``address`` of the engine at ``session``."""
    return _encode(Pull(*session, routed(where), [address], [nbytes]))


def info(request_id: str, nbytes: int, fast: bool) -> bytes:
    """The answer to a query."""
    return _encode(Info(request_id, nbytes, fast))


def request(body: bytes | memoryview) -> Request:
    """What a receiver asks."""
    asks = bytes(body[: len(QUERY)]) == QUERY
    answer = NOT_FOUND if asks else ERROR
    if len(body) > BODY_LIMIT:
        return Malformed(answer, f"a request of {len(body)} bytes")
    try:
        if asks:
            question = _query(memoryview(body)[len(QUERY) :])
            wrong = _wrong_key(question.request_id)
            return question if wrong is None else Malformed(answer, wrong)
        wanted = _pull(body)
    except _BROKEN as error:
        return Malformed(answer, str(error))
    wrong = _wrong_pull(wanted)
    return wanted if wrong is None else Malformed(answer, wrong)


def found(body: bytes | memoryview) -> Info | None:
    """The sender's answer to a query; ``None`` when it has nothing under that key.

    Raises:
        ProtocolError: it is neither.
    """
    if body == NOT_FOUND:
        return None
    if len(body) > BODY_LIMIT:
        raise ProtocolError(f"the sender answered a query with {len(body)} bytes")
    try:
        answer = _info(body)
    except _BROKEN as error:
        raise ProtocolError(f"the sender's answer to a query makes no sense: {error}") from None
    if not 0 <= answer.data_size < 1 << 63:
        raise ProtocolError(f"the sender offers a payload of {answer.data_size} bytes")
    return answer


def done(body: bytes | memoryview) -> bool:
    """The sender's answer to a pull: whether the bytes have been written.

    Raises:
        ProtocolError: it is no such answer.
    """
    if body == DONE:
        return True
    if body == ERROR:
        return False
    raise ProtocolError(f"the sender answered a pull with {bytes(body[:40])!r}")


def _wrong_key(request_id: str) -> str | None:
    limit = 4 * KEY_LIMIT  # stages have no limit of their own
    return None if 0 < len(request_id) <= limit else f"a key of {len(request_id)} characters"


def _wrong_pull(wanted: Pull) -> str | None:
    wrong = _wrong_key(wanted.request_id)
    if wrong is not None:
        return wrong
    host = wanted.remote_hostname
    if not 0 < len(host) <= HOST_LIMIT or not host.isprintable() or " " in host or "/" in host:
        return f"an engine at host {host[:40]!r}"
    if not 0 < wanted.remote_port <= 65535:
        return f"an engine at port {wanted.remote_port}"
    addresses, lengths = wanted.dst_addrs, wanted.lengths
    if len(addresses) != 1 or len(lengths) != 1:
        return f"{len(addresses)} addresses and {len(lengths)} lengths; one of each is known"
    if addresses[0] <= 0 or lengths[0] <= 0 or addresses[0] + lengths[0] > _ADDRESS_END:
        return f"{lengths[0]} bytes at address {addresses[0]:#x}"
    return None
