"""The payload every benchmark moves: one dictionary with hidden states, codec frames and metadata.

In: a size in bytes. Out: payloads, and a check that what arrived is what was sent.
Never: times anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SIZES = {"4K": 4 << 10, "64K": 64 << 10, "1M": 1 << 20, "16M": 16 << 20, "186M": 186 << 20}
WIDTH = 2048
"""Elements in a row of the hidden states; a row is 4,096 bytes."""

PAGE = 4096


def parse_size(text: str) -> int:
    """Bytes of ``64K``, ``1M``, ``186MB`` or a plain number, a positive multiple of one row."""
    digits = text.strip().upper().removesuffix("B")
    scale = {"K": 10, "M": 20, "G": 30}.get(digits[-1:], 0)
    number = digits[:-1] if scale else digits
    if not number.isdecimal() or int(number) == 0:
        raise ValueError(f"{text!r} is no size; write 4K, 64K, 1M, 186M or bytes")
    nbytes = int(number) << scale
    if nbytes % PAGE:
        raise ValueError(f"{text!r} is no multiple of a row of {PAGE} bytes")
    return nbytes


def size_name(nbytes: int) -> str:
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if nbytes >= 1 << shift and nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift} {unit}B"
    return f"{nbytes} B"


def hidden_states(nbytes: int) -> torch.Tensor:
    """bfloat16 ``[nbytes / 4096, 2048]``, the same in every process."""
    import torch

    generator = torch.Generator().manual_seed(nbytes)
    raw = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
    return raw.view(torch.bfloat16).reshape(-1, WIDTH)


def value(hidden: torch.Tensor) -> dict[str, Any]:
    """The dictionary around ``hidden``, which is not copied."""
    return {
        "request_id": "request-0123456789abcdef",
        "hidden_states": hidden,
        "codec": [(step * 7919) % 4096 for step in range(400)],
        "meta": {
            "finished": False,
            "chunk": 3,
            "left_context": 25,
            "speaker": "anna",
            "scores": [0.5, 0.25],
        },
    }


def raw(hidden: torch.Tensor) -> torch.Tensor:
    """The bytes of ``hidden``: uint8, one-dimensional, not copied."""
    import torch

    return hidden.reshape(-1).view(torch.uint8)


def stamp(hidden: torch.Tensor, index: int) -> None:
    """Mark the payload as number ``index``, so that an old one cannot pass for a new one."""
    import torch

    hidden.view(torch.int32)[0, 0] = index


class Mismatch(AssertionError):
    """What arrived is not what was sent."""


def check(received: Any, reference: torch.Tensor, index: int, *, whole: bool) -> None:
    """Compare what arrived with the reference.

    ``whole`` looks at everything, without it only at what tells one payload from another: what is
    done between two payloads must not let the processes' caches cool down.

    Raises:
        Mismatch: something differs; the text says what.
    """
    import torch

    if isinstance(received, dict):
        hidden = received["hidden_states"]
        expected = value(reference) if whole else {}
        for name in expected.keys() - {"hidden_states"}:
            if received[name] != expected[name]:
                raise Mismatch(f"{name!r} of payload {index} differs")
        if hidden.dtype != reference.dtype or hidden.shape != reference.shape:
            raise Mismatch(f"payload {index} is {hidden.dtype} {tuple(hidden.shape)}")
    else:
        hidden = received.view(torch.bfloat16).reshape(-1, WIDTH)
    if int(hidden.view(torch.int32)[0, 0]) != index:
        raise Mismatch(f"payload {index} carries the bytes of another one")
    if whole and not torch.equal(raw(hidden)[4:], raw(reference)[4:]):
        raise Mismatch(f"bytes of payload {index} differ")


def touch(received: Any) -> int:
    """Read one byte of every page, as the first kernel over the data would."""
    hidden = received["hidden_states"] if isinstance(received, dict) else received
    return int(raw(hidden)[::PAGE].sum())
