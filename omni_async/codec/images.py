"""PIL: images by mode, size, pixels, palette and what their ``info`` holds of plain values.

In: ``PIL.Image.Image`` and images opened from files, or the body of their extension. Out: an extension
and a frame, or a ``PIL.Image.Image``. Never: imports PIL to encode; decodes a file format.

An image opened from a file arrives as a plain ``Image``, of a file with several pictures the current one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..errors import DecodeError
from .frames import ImageFrame
from .wire import Tag
from .writer import UnsendableError, Writer

if TYPE_CHECKING:
    from .reader import Read, Reader

_BITS = {
    "1": 1, "L": 8, "P": 8, "LA": 16, "La": 16, "PA": 16, "I;16": 16, "I;16L": 16, "I;16B": 16,
    "RGB": 24, "LAB": 24, "HSV": 24, "YCbCr": 24, "RGBA": 32, "RGBa": 32, "RGBX": 32, "CMYK": 32,
    "I": 32, "F": 32,
}  # fmt: skip
"""Bits of one pixel by mode; a row starts at a whole byte."""

_EMPTY_SIDE = 1 << 16
"""Longest side of an image without pixels: PIL keeps a pointer for each row even then."""


def write_image(writer: Writer, value: Any, depth: int) -> Any:
    try:
        value.load()
    except Exception as error:  # whatever a file format's plug-in raises
        raise UnsendableError(f"an image of which the pixels cannot be read ({error})") from error
    mode, (width, height) = value.mode, value.size
    if mode not in _BITS:
        raise UnsendableError(f"a PIL image of mode {mode!r} cannot be sent; convert it")
    nbytes = pixel_bytes(mode, width, height)
    if nbytes is None:
        raise UnsendableError(f"a PIL image without pixels, of size {value.size}, cannot be sent")
    index = writer.add(ImageFrame(nbytes, 0, value))
    palette = None
    if mode in ("P", "PA") and value.palette is not None:
        kind = value.palette.mode
        palette = [kind, bytes(value.getpalette(kind))]
    info = _info(writer, value, depth)
    return writer.ext(Tag.IMAGE, [index, mode, width, height, palette, info])


def _info(writer: Writer, value: Any, depth: int) -> dict[str, Any]:
    """What can be sent of it. Parsers leave objects of their own there, which are no part of a picture."""
    found: dict[str, Any] = {}
    for key, item in value.info.items():
        mark = len(writer.frames)
        try:
            found[str(key)] = writer.tree(str(item) if isinstance(item, str) else item, depth + 1)
        except UnsendableError:
            del writer.frames[mark:]
    return found


def pixel_bytes(mode: str, width: int, height: int) -> int | None:
    """Bytes of the pixels; ``None`` where a side is impossible."""
    nbytes = (width * _BITS[mode] + 7) // 8 * height
    if min(width, height) < 0 or (not nbytes and max(width, height) > _EMPTY_SIDE):
        return None
    return nbytes


@functools.cache
def load_pil() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise DecodeError(
            "the payload holds a PIL image, and PIL cannot be imported here; install pillow",
            missing="PIL",
        ) from error
    return PIL.Image


def _read_image(reader: Reader, data: memoryview) -> Any:
    index, mode, width, height, palette, info = reader.items(data)
    nbytes = pixel_bytes(mode, width, height)
    if nbytes is None or type(info) is not dict:
        raise DecodeError(f"the payload has an impossible image of size {width} x {height}")
    pixels = reader.take(index, nbytes)
    image = load_pil().frombytes(mode, (width, height), pixels.data)
    if palette is not None:
        kind, colours = palette
        if type(colours) is not bytes:
            raise DecodeError("the payload has an image whose palette is not bytes")
        image.putpalette(colours, kind)
    image.info.update(info)
    return image


READERS: dict[int, Read] = {Tag.IMAGE: _read_image}
