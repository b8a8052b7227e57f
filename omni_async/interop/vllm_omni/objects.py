"""What a payload becomes for vLLM-Omni: raw bytes where its wire has them, else one object.

In: values, or payloads of our own wire. Out: the same for that of vLLM-Omni.
Never: sends what arrives there as something that it is not.

Its wire carries raw bytes for a tensor or ``bytes`` as the whole value (the *fast path*: neither type,
dtype nor shape travels along) and a MessagePack object (:mod:`.writing`) for everything else. Nothing
at all cannot be carried: its receivers take a size of 0 for a payload that is not there.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from ...codec import Encoded
from ...codec import encode as encode_ours
from ...codec.table import ONE_FRAME, WHOLE
from ...codec.tensors import write_raw
from ...codec.wire import Ext, Tag, encode_tree, seal, unseal
from ...errors import EncodeError
from .writing import write

HEADER = seal(
    encode_tree(
        Ext(
            Tag.REGISTERED,
            encode_tree(["an object for vLLM-Omni (say peer: vllm-omni at this end, too)", None]),
        )
    )
)
"""Stands in front of an object where our own wire wants a header. Its receivers are told what it is,
and leave it."""

_RAW_TAGS = frozenset({Tag.TENSOR, Tag.RAW, Tag.BYTES})


def encode(value: Any) -> Encoded:
    """A value as vLLM-Omni's receivers will take it: the last frame is what is written to them.

    Raises:
        EncodeError: that wire cannot carry it; names the path and the remedy.
    """
    if not _is_raw(value):
        pieces = write(value)
        return Encoded(HEADER, [pieces], False, pieces.nbytes)
    encoded = encode_ours(value)
    if not encoded.nbytes:
        raise EncodeError(
            f"value: a {type(value).__name__} without a single byte cannot be sent to vLLM-Omni; "
            "send it inside a dictionary",
            path="value",
        )
    return encoded


def is_raw(header: bytes) -> bool:
    """Whether a payload of our wire that has one frame is raw bytes on that of vLLM-Omni."""
    tree: Any = msgspec.msgpack.decode(unseal(header))
    return isinstance(tree, Ext) and tree.code in _RAW_TAGS


def _is_raw(value: Any) -> bool:
    kind = type(value)
    torch: Any = sys.modules.get("torch")
    if kind is bytes or (hasattr(torch, "Tensor") and isinstance(value, torch.Tensor)):
        return True
    return kind in ONE_FRAME and WHOLE.get(kind) is write_raw
