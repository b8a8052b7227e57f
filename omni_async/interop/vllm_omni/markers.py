"""vLLM-Omni's object format: how what MessagePack has no word for is marked.

In: nothing. Out: names and tables that its reading and its writing share.
Never: holds code.

An object is one MessagePack value. A tensor, an array or an image inside it is a map that begins with
a marker and has the raw bytes under ``data``.
"""

from __future__ import annotations

from typing import Final

from ...codec.tensors import DTYPES, QUANTISED

TENSOR: Final = "__tensor__"
ARRAY: Final = "__ndarray__"
IMAGE: Final = "__pil_image__"
MARKERS: Final = (TENSOR, ARRAY, IMAGE)

TENSOR_CODES: Final = {name: code for code, name in enumerate(DTYPES) if name not in QUANTISED}
"""torch's dtypes by the name that the format uses, without ``torch.``; the codes are our codec's."""

IMAGE_BANDS: Final = {
    "L": 1, "LA": 2, "La": 2, "RGB": 3, "RGBA": 4, "RGBa": 4, "RGBX": 4, "CMYK": 4, "YCbCr": 3,
    "LAB": 3, "HSV": 3, "P": 1, "PA": 2,
}  # fmt: skip
"""Modes whose pixels are that many bytes. The format knows no others, and no palettes."""

PALETTES: Final = frozenset({"P", "PA"})
