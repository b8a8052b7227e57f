"""The table of writers: which exact type is written by what.

In: types. Out: their writers, those of torch and PIL as soon as a value shows that they are in use.
Never: imports torch or PIL; takes a subclass for its base.
"""

from __future__ import annotations

import sys
from typing import Any

from . import arrays, containers, images, scalars, tensors
from .frames import RawBuffer
from .writer import UnsendableError, Write

WRITERS: dict[type, Write] = {**containers.WRITERS, **scalars.WRITERS, **arrays.WRITERS}
"""By exact type. ``register_type`` adds to it, and :func:`find` does for torch and PIL."""

WHOLE: dict[type, Write] = dict(containers.WHOLE_WRITERS)
"""How these are written when they are the whole value: as one frame, however short."""

ONE_FRAME: set[type] = {*WHOLE, *arrays.ONE_FRAME}
"""Types that are a payload of one frame."""


def find(kind: type) -> Write:
    """The writer of a type that is not in the table yet.

    Raises:
        UnsendableError: it cannot be sent.
    """
    _learn_torch()
    _learn_pil(kind)
    write = WRITERS.get(kind)
    if write is not None:
        return write
    name = kind.__name__
    if kind in WHOLE:
        raise UnsendableError(f"object of type {name} can be sent only as the whole value")
    raise UnsendableError(
        f"object of type {name} cannot be sent; "
        f"register it with omni_async.register_type({name}) on both sides"
    )


def register_buffer(cls: type[RawBuffer]) -> None:
    """Let instances of ``cls`` be sent as the whole value: their ``array`` is the one frame."""
    WHOLE[cls] = tensors.write_raw
    ONE_FRAME.add(cls)


def _learn_torch() -> None:
    torch: Any = sys.modules.get("torch")
    nn: Any = sys.modules.get("torch.nn")
    if hasattr(nn, "Parameter") and torch.Tensor not in WRITERS:  # else it is being imported
        WRITERS.update(tensors.writers(torch))
        ONE_FRAME.update({torch.Tensor, nn.Parameter})


def _learn_pil(kind: type) -> None:
    """An image from a file has a class per format; all of them are pictures."""
    image: Any = sys.modules.get("PIL.Image")
    file: Any = sys.modules.get("PIL.ImageFile")
    if image is None:
        return
    if kind is image.Image or (file is not None and issubclass(kind, file.ImageFile)):
        WRITERS[kind] = images.write_image
