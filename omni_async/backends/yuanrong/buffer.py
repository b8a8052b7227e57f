"""Buffer: where the bytes are that the vendor shows.

In: the vendor's objects. Out: an address, for as long as it is kept.
Never: copies.
"""

from __future__ import annotations

import ctypes
from typing import Any


class Buffer:
    """Bytes of the worker's memory, for as long as this lives."""

    def __init__(self, keep: Any, data: memoryview) -> None:
        self._keep = keep
        self._view = _View()
        _get_buffer(data, ctypes.byref(self._view), 0)
        self.address: int = self._view.buf or 0
        self.nbytes = data.nbytes

    def release(self) -> None:
        """Idempotent."""
        if self._keep is not None:
            _release_buffer(ctypes.byref(self._view))
            self._keep = None


class _View(ctypes.Structure):
    """CPython's ``Py_buffer``."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


# The only way to the address of bytes that may not be written.
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.c_void_p]
_release_buffer.restype = None
