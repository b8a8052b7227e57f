"""The wrapper of the vendor's engine, around what stands for it: ports, memory, errors, closing."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from omni_async import BackendUnavailable, ConfigError, EngineFault
from omni_async.backends.yuanrong_te import _native
from omni_async.backends.yuanrong_te._native import NativeEngine
from omni_async.pool.memory import AnonymousMemory
from omni_async.testing.doubles import yuanrong_te as double

HOST = "127.0.0.1"
VENDOR: ModuleType = sys.modules[double.__name__]


@pytest.fixture
def native() -> Iterator[NativeEngine]:
    engine = NativeEngine(VENDOR, HOST, None, "npu:0")
    yield engine
    engine.close()


def test_where_it_listens(native: NativeEngine) -> None:
    assert native.session == f"{HOST}:{native.port}"
    with socket.create_connection((HOST, native.port), timeout=5):
        pass


def test_a_port_of_its_own() -> None:
    probe = _native._free_port(HOST)
    engine = NativeEngine(VENDOR, HOST, probe, "npu:0")
    try:
        assert engine.port == probe
        with pytest.raises(ConfigError, match=f"port {probe} of {HOST} cannot be had") as caught:
            NativeEngine(VENDOR, HOST, probe, "npu:0")
        assert caught.value.path == "rpc_port"
    finally:
        engine.close()
    NativeEngine(VENDOR, HOST, probe, "npu:0").close()  # it is free again


def test_somebody_is_faster(native: NativeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between finding a free port and binding it: another one is found."""
    found = iter([native.port, native.port, _native._free_port(HOST)])
    monkeypatch.setattr(_native, "_free_port", lambda host: next(found))
    NativeEngine(VENDOR, HOST, None, "npu:0").close()
    monkeypatch.setattr(_native, "_free_port", lambda host: native.port)
    with pytest.raises(BackendUnavailable, match="bind failed"):
        NativeEngine(VENDOR, HOST, None, "npu:0")


@pytest.mark.parametrize("device", ["", "0", "npu:", "cuda:0"])
def test_a_device_that_the_vendor_does_not_know(device: str) -> None:
    with pytest.raises(BackendUnavailable, match="device_name"):
        NativeEngine(VENDOR, HOST, None, device)


def test_memory(native: NativeEngine) -> None:
    block = AnonymousMemory().allocate(1 << 16)
    native.register(block.address, block.nbytes)
    with pytest.raises(EngineFault, match="cannot register 65,536 bytes") as caught:
        native.register(block.address, block.nbytes)
    assert caught.value.status == "kInvalid"
    native.unregister(block.address)
    native.unregister(block.address)  # nothing is done about it
    native.register(block.address, block.nbytes)


def test_a_read_that_fails_says_why(native: NativeEngine) -> None:
    with pytest.raises(EngineFault, match=r"could not read 7 bytes from .*acl context") as caught:
        native.read(native.session, [1], [1], [7])
    assert caught.value.status == "kNotReady"
    assert caught.value.backend == "YuanrongTransferEngineConnector"


def test_long_words_are_cut(native: NativeEngine) -> None:
    assert len(_native.told(double._result(double.ErrorCode.kNotReady, "x" * 5000))) == 301


def test_after_closing() -> None:
    engine = NativeEngine(VENDOR, HOST, None, "npu:0")
    engine.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOST, engine.port), timeout=5)


def test_an_engine_that_nobody_has_ends() -> None:
    """As the vendor's does: an opening that was cancelled leaves none behind."""
    engine = NativeEngine(VENDOR, HOST, None, "npu:0")
    port = engine.port
    del engine
    gc.collect()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((HOST, port), timeout=5)
