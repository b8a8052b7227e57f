"""Arguments of the public calls: right, or refused at once.

In: what a caller passed. Out: the same in its usual form.
Never: touches a transport.
"""

from __future__ import annotations

import operator
from typing import Any

from ..errors import BackendUnavailable, UsageError
from ..model import KEY_LIMIT, EdgeName, Role


def stage_name(stage: str | int) -> str:
    if isinstance(stage, str) and is_text(stage):
        return stage
    if isinstance(stage, int) and not isinstance(stage, bool):
        return str(stage)
    raise UsageError(f"a stage id is a non-empty str or an int, not {stage!r}")


def checked_edge(
    from_stage: str | int, to_stage: str | int, role: Role, own_stage: str
) -> EdgeName:
    """The edge, if an endpoint of ``own_stage`` is at the right end of it.

    Raises:
        UsageError: it is not, or one of them is no stage.
    """
    edge = EdgeName(stage_name(from_stage), stage_name(to_stage))
    own, side = edge.from_stage, "from_stage"
    if role == "receiver":
        own, side = edge.to_stage, "to_stage"
    if own != own_stage:
        raise UsageError(
            f"edge {edge}: {side} must be {own_stage!r}, the stage this {role} was opened for"
        )
    return edge


def is_text(name: str) -> bool:
    """Whether it can be a name: not empty, and without half a character."""
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            return False
    return bool(name)


def checked_key(key: object) -> str:
    """The key, if it is one.

    Raises:
        UsageError: not a str, empty, longer than 1,024 bytes of UTF-8, or not encodable.
    """
    if not isinstance(key, str):
        raise UsageError(f"a key is a str, not {type(key).__name__} {key!r}")
    if not key:
        raise UsageError("a key must not be empty")
    if key.isascii():
        nbytes = len(key)
    else:
        try:
            nbytes = len(key.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"the key {key!r} is not valid Unicode: {error}") from None
    if nbytes > KEY_LIMIT:
        raise UsageError(
            f"a key has at most {KEY_LIMIT} bytes of UTF-8, this one has {nbytes}: {key[:60]!r}..."
        )
    return key


def checked_owner(request_id: object) -> None:
    """Refuse what is no owner of payloads.

    Raises:
        UsageError: not a str, or empty.
    """
    if not isinstance(request_id, str) or not request_id:
        raise UsageError(f"request_id must be a non-empty str, not {request_id!r}")


def checked_shape(shape: Any) -> tuple[int, ...]:
    """A shape as ints; whatever counts as an index will do, numpy's ints for one."""
    try:
        given = (shape,) if hasattr(shape, "__index__") else tuple(shape)
        sizes = tuple(map(operator.index, given))
    except TypeError:
        raise UsageError(f"a shape has ints of at least 0, not {shape!r}") from None
    if min(sizes, default=0) < 0 or any(isinstance(size, bool) for size in given):
        raise UsageError(f"a shape has ints of at least 0, not {shape!r}")
    return sizes


def checked_dtype(dtype: Any) -> Any:
    """A ``torch.dtype`` of plain numbers; torch's default for ``None``."""
    torch = torch_or_remedy()
    kind = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(kind, torch.dtype) or str(kind).startswith(("torch.q", "torch.bits")):
        raise UsageError(f"dtype must be a torch.dtype of plain numbers, not {dtype!r}")
    return kind


def torch_or_remedy() -> Any:
    """The module ``torch``.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise BackendUnavailable(
            f"tensors need PyTorch, which cannot be imported here: {error}",
            remedy="pip install 'omni-async[torch]'",
        ) from error
    return torch


def checked_device(device: Any) -> Any:
    """The torch device, or ``None`` for the CPU, where tensors arrive anyway."""
    torch = torch_or_remedy()
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, TypeError, AssertionError) as error:  # as torch reports what it lacks
        raise UsageError(f"device {device!r} cannot be used here: {error}") from error
    if checked.type == "meta":
        raise UsageError(f"device {device!r} has no memory to receive into")
    return None if checked.type == "cpu" else checked
