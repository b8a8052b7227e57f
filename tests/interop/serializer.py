"""vLLM-Omni's own serializer, unmodified, in a process of its own.

In: requests on stdin. Out: answers on stdout.
Never: lets the stand-ins that it needs into the tests' process.

Requests and answers are pickled: both sides are ours.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import torch


class _Pickler(pickle.Pickler):
    """torch's own pickles do not know every dtype, numpy's not every byte order."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            return array_from, (value.dtype.str, value.shape, value.tobytes())
        if type(value) is not torch.Tensor:
            return NotImplemented
        whole = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        raw = whole.view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return tensor_from, (str(value.dtype).removeprefix("torch."), tuple(value.shape), raw)


def array_from(dtype: str, shape: tuple[int, ...], raw: bytes) -> Any:
    return np.ndarray(shape, dtype, bytearray(raw))


def tensor_from(dtype: str, shape: tuple[int, ...], raw: bytes) -> Any:
    kind = getattr(torch, dtype)
    if not raw:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(kind).reshape(shape)


class Serializer:
    """The tests' side."""

    def __init__(self, wheel: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main({wheel!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def serialize(self, value: Any) -> bytes:
        """The bytes that it makes of a value; ``TypeError`` and the like where it makes none."""
        made: bytes = self._ask("serialize", value)
        return made

    def deserialize(self, data: bytes) -> Any:
        """What it makes of bytes."""
        return self._ask("deserialize", data)

    def _ask(self, what: str, argument: Any) -> Any:
        line = self._process
        assert line.stdin is not None
        assert line.stdout is not None
        _Pickler(line.stdin, 5).dump((what, argument))
        line.stdin.flush()
        fine, outcome = pickle.load(line.stdout)
        if not fine:
            raise outcome
        return outcome

    def close(self) -> None:
        self._process.communicate()


def main(wheel: str) -> None:
    from omni_async.cli.bench.peer import find, serializer

    warnings.simplefilter("ignore")
    peer = serializer(find(wheel))
    while True:
        try:
            what, argument = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = True, getattr(peer, what)(argument)
        except Exception as error:  # noqa: BLE001 - it is what the test asked about
            answer = False, error
        _Pickler(sys.stdout.buffer, 5).dump(answer)
        sys.stdout.flush()
