"""PIL: every mode, palettes, info, files; what has no known pixels is refused."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest

from omni_async.codec import decode, encode, images
from omni_async.codec.wire import Ext, Tag, encode_tree
from omni_async.errors import DecodeError, EncodeError

from .landing import land, same, sealed, slot, trip

Image = pytest.importorskip("PIL.Image")

MODES = ["1", "L", "P", "LA", "La", "PA", "I;16", "I;16L", "I;16B", "RGB", "LAB", "HSV", "YCbCr"]
MODES += ["RGBA", "RGBa", "RGBX", "CMYK", "I", "F"]
SIZES = [(11, 3), (1, 1), (8, 8), (0, 5), (5, 0), (0, 0)]


def picture(mode: str, size: tuple[int, int] = (11, 3)) -> Any:
    nbytes = len(Image.new(mode, size).tobytes())
    return Image.frombytes(mode, size, os.urandom(nbytes) if mode != "F" else bytes(nbytes))


def same_picture(one: Any, other: Any) -> None:
    assert type(other) is Image.Image
    assert (one.mode, one.size) == (other.mode, other.size)
    assert one.tobytes() == other.tobytes()
    assert one.getpalette("RGBA") == other.getpalette("RGBA")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_mode(mode: str, size: tuple[int, int]) -> None:
    image = picture(mode, size)
    same_picture(image, trip(image))
    received = trip({"x": [image, (image,)]})
    same_picture(image, received["x"][0])
    same_picture(image, received["x"][1][0])
    encoded = encode(image)
    assert not encoded.fast
    assert encoded.frames[0].nbytes == len(image.tobytes())


@pytest.mark.parametrize("mode", ["P", "PA"])
@pytest.mark.parametrize("kind", ["RGB", "RGBA"])
def test_palettes(mode: str, kind: str) -> None:
    image = picture(mode)
    image.putpalette(bytes(range(4 * len(kind))), kind)
    received = trip(image)
    same_picture(image, received)
    assert received.palette.mode == kind
    assert image.convert("RGBA").tobytes() == received.convert("RGBA").tobytes()


def test_info_travels_as_far_as_it_is_plain() -> None:
    image = picture("P")
    image.info = {"transparency": b"\0\xff", "dpi": (72, 72.5), "icc": b"i" * 9000, "o": object()}
    image.info["list"] = [b"j" * 9000, object()]
    received = trip([image])[0]
    same({"transparency": b"\0\xff", "dpi": (72, 72.5), "icc": b"i" * 9000}, received.info)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "BMP"])
def test_images_from_files_arrive_as_plain_images(kind: str) -> None:
    from PIL.PngImagePlugin import PngInfo

    file = io.BytesIO()
    options: dict[str, Any] = {}
    if kind == "PNG":
        options["pnginfo"] = PngInfo()
        options["pnginfo"].add_itxt("Title", "söng", "de")
    picture("RGB").save(file, kind, **options)
    with Image.open(file) as image:
        received = trip({"image": image})["image"]
        same_picture(image, received)
        if kind == "PNG":
            same("söng", received.info["Title"])


def test_a_broken_file_is_refused_when_it_is_put() -> None:
    file = io.BytesIO()
    picture("RGB", (200, 200)).save(file, "PNG")
    with Image.open(io.BytesIO(file.getvalue()[:-5000])) as image:
        with pytest.raises(EncodeError, match="pixels cannot be read") as info:
            encode({"i": image})
    assert info.value.path == "value['i']"


def test_what_cannot_be_sent() -> None:
    image = picture("L")
    image._mode = "BGR;15"
    with pytest.raises(EncodeError, match="mode 'BGR;15' cannot be sent"):
        encode(image)
    with pytest.raises(EncodeError, match="without pixels"):
        encode(Image.new("L", (0, 1 << 17)))

    class Mine(Image.Image):  # type: ignore[misc, name-defined]
        pass

    with pytest.raises(EncodeError, match="object of type Mine"):
        encode(Mine())


@pytest.mark.parametrize(
    ("mode", "width", "height", "frame"),
    [
        ("L", 1 << 40, 1 << 40, 16), ("L", 0, 1 << 40, 0), ("L", -4, -4, 16), ("L", 5, 3, 16),
        ("X", 4, 4, 16), (None, 4, 4, 16), ("L", 4.0, 4, 16), ("L", "4", 4, 16), ("1", 4, 16, 17),
    ],
)  # fmt: skip
def test_forged_sizes(mode: Any, width: Any, height: Any, frame: int) -> None:
    body = Ext(Tag.IMAGE, encode_tree([0, mode, width, height, None, {}]))
    with pytest.raises(DecodeError):
        decode(sealed(encode_tree(body)), [slot(frame)])


@pytest.mark.parametrize(
    ("palette", "info"), [(None, []), (["X", b""], {}), ([], {}), (b"", {}), (["RGB", 5], {})]
)
def test_forged_details(palette: Any, info: Any) -> None:
    body = Ext(Tag.IMAGE, encode_tree([0, "P", 4, 4, palette, info]))
    with pytest.raises(DecodeError):
        decode(sealed(encode_tree(body)), [slot(16)])


def test_without_pil_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = encode(picture("L"))
    buffers = land(encoded)
    images.load_pil.cache_clear()
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(DecodeError, match="install pillow"):
        decode(encoded.header, buffers)
