"""The vendor's own engine where there is no NPU: by a library that stands for CANN, see ``cann.cpp``.

In: ``CANN_DOUBLE``, where that library is. Out: a backend by the name ``yuanrong-te-on-host``.
Never: runs in a process that has Mooncake's library.
"""

from __future__ import annotations

import ctypes
import os
from types import ModuleType

from omni_async.backends.yuanrong_te._native import load
from omni_async.backends.yuanrong_te.engine import Device
from omni_async.testing.doubles.yuanrong_te import HostNpu, YuanrongTransferEngineDouble

LIBRARY = "CANN_DOUBLE"


class OnCann(HostNpu):
    """Host memory, and threads in place of a device's queues."""

    def __init__(self) -> None:
        super().__init__()
        self._cann = ctypes.CDLL(os.environ[LIBRARY])

    def use(self) -> None:
        self._cann.aclrtSetDevice(0)

    def settle(self) -> None:
        self._cann.aclrtSynchronizeDevice()


class YuanrongTransferEngineOnHost(YuanrongTransferEngineDouble):
    name = "YuanrongTransferEngineOnHost"
    alias = "yuanrong-te-on-host"

    def vendor(self) -> ModuleType:
        ctypes.CDLL(os.environ[LIBRARY])  # from now on it is found by its name
        os.environ["TRANSFER_ENGINE_P2P_SO_PATH"] = os.environ[LIBRARY]  # read for each engine
        return load()

    def device(self, number: int) -> Device:
        return OnCann()
