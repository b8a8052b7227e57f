"""Notices: what instances tell each other on their notify ports, one frame each.

In: notices. Out: their bytes; and back, in whatever form the other side has them.
Never: answers, sends, makes a notice that the other side's listener would die of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from ...errors import ProtocolError, UsageError
from .params import Side

_LONGEST_ID = 4096


class RemoteBlocks(msgspec.Struct, frozen=True):
    """(decode → prefill, WRITE) My blocks are these: write."""

    request_id: str
    """As decode's engine has it; for people."""
    transfer_id: str
    block_ids: tuple[int, ...]
    decode_rank: int = 0
    """Decode's dp rank, over all of its hosts."""


class WriteDone(msgspec.Struct, frozen=True):
    """(prefill → decode, WRITE) Every byte is in its place."""

    transfer_id: str


class WriteFailed(msgspec.Struct, frozen=True):
    """(prefill → decode, WRITE) There will be no more bytes. Older listeners die of it: tell it only to whom
    has said that it knows this."""

    transfer_id: str


class Released(msgspec.Struct, frozen=True):
    """(decode → prefill) I have read what I need, or want nothing any more."""

    transfer_id: str
    consumer_tp_size: int | None = None
    """How many ranks read: each rank of prefill hears of those that read from it."""


Notice: TypeAlias = "RemoteBlocks | WriteDone | WriteFailed | Released"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def packed(notice: Notice) -> bytes:
    """The one frame of a notice.

    Raises:
        UsageError: it has no transfer, or no block.
    """
    if not notice.transfer_id:
        raise UsageError("a notice has a transfer_id")
    if isinstance(notice, RemoteBlocks):
        if not notice.block_ids:
            raise UsageError("a notice of blocks has at least one; release the transfer instead")
        return _encode(
            {
                "req_id": notice.request_id,
                "transfer_id": notice.transfer_id,
                "block_notify_list": notice.block_ids,
                "decode_rank": notice.decode_rank,
                "type": "remote_blocks",
            }
        )
    told: dict[str, Any] = {"type": _TYPES[type(notice)], "transfer_id": notice.transfer_id}
    if isinstance(notice, Released) and notice.consumer_tp_size is not None:
        if notice.consumer_tp_size < 1:
            raise UsageError(
                f"consumer_tp_size must be at least 1, it is {notice.consumer_tp_size}"
            )
        told["consumer_tp_size"] = notice.consumer_tp_size
    return _encode(told)


def packed_as_text(notice: WriteDone | Released) -> bytes:
    """The older form of two notices: the transfer's id."""
    return notice.transfer_id.encode()


_TYPES = {WriteDone: "write_done", WriteFailed: "write_failed", Released: "release"}


def parse_notice(body: bytes | memoryview, side: Side) -> Notice:
    """Read a notice, in today's form or an older one.

    Args:
        side: which side heard it: a text alone means something else to each.

    Raises:
        ProtocolError: it is none that this side can be told; nothing else follows from that.
    """
    told = _map_of(body)
    notice = _text(body, side) if told is None else _typed(told)
    if isinstance(notice, (RemoteBlocks, Released)) != (side == "prefill"):
        raise ProtocolError(f"a {side} instance cannot be told {type(notice).__name__}")
    return notice


def _map_of(body: bytes | memoryview) -> Mapping[Any, Any] | None:
    try:
        told = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) else None


def _text(body: bytes | memoryview, side: Side) -> Notice:
    try:
        text = str(body, "utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable() or len(text) > _LONGEST_ID:
        raise ProtocolError(f"{len(body)} bytes are no notice")
    return Released(text) if side == "prefill" else WriteDone(text)


def _typed(told: Mapping[Any, Any]) -> Notice:
    kind = told.get("type")
    if kind is None and "req_id" in told:  # as it was before there were others
        kind = "remote_blocks"
    transfer_id = told.get("transfer_id")
    if not isinstance(transfer_id, str) or not 0 < len(transfer_id) <= _LONGEST_ID:
        raise ProtocolError(f"notice {kind!r} has no transfer_id")
    if kind == "write_done":
        return WriteDone(transfer_id)
    if kind == "write_failed":
        return WriteFailed(transfer_id)
    if kind == "release":
        size = told.get("consumer_tp_size")
        if size is not None and (type(size) is not int or size < 1):
            raise ProtocolError(f"notice 'release': consumer_tp_size is {size!r}")
        return Released(transfer_id, size)
    if kind == "remote_blocks":
        return _blocks(told, transfer_id)
    raise ProtocolError(f"notice {str(kind)[:80]!r} is not known")


def _blocks(told: Mapping[Any, Any], transfer_id: str) -> RemoteBlocks:
    blocks = told.get("block_notify_list")
    if isinstance(blocks, list) and len(blocks) == 1 and isinstance(blocks[0], list):
        blocks = blocks[0]  # by group, where there is one group
    if not isinstance(blocks, list) or not blocks:
        raise ProtocolError("notice 'remote_blocks' has no blocks")
    if any(type(block) is not int or block < 0 for block in blocks):
        raise ProtocolError("notice 'remote_blocks': these are no blocks of one group")
    rank = told.get("decode_rank", 0)
    if type(rank) is not int or rank < 0:
        raise ProtocolError(f"notice 'remote_blocks': decode_rank is {rank!r}")
    return RemoteBlocks(str(told.get("req_id", "")), transfer_id, tuple(blocks), rank)
