"""The wrapper around the vendor: what cannot be asked, what is shared, what the environment says."""

from __future__ import annotations

import os
import sys
import types
from typing import Any, ClassVar

import pytest

from omni_async.backends.mooncake import _native
from omni_async.backends.mooncake._native import NativeEngine, Write
from omni_async.errors import BackendUnavailable, ConfigError, EngineFault


class FakeEngine:
    """The vendor's, as far as it is used; it remembers what it was told, and dies as the real one does."""

    status: int = 0
    made: ClassVar[list[FakeEngine]]

    def __init__(self) -> None:
        self.handles: dict[int, list[int]] = {}
        self.registered: dict[int, int] = {}
        self.reachable = True
        self.next = 100
        self.environment: dict[str, str] = {}
        self.started: tuple[str, ...] = ()
        self.made.append(self)

    def initialize(self, *words: str) -> int:
        self.started = words
        self.environment = dict(os.environ)
        return self.status

    def get_rpc_port(self) -> int:
        return 12345

    def register_memory(self, address: int, nbytes: int) -> int:
        self.registered[address] = nbytes
        return 0

    def unregister_memory(self, address: int) -> int:
        return 0 if self.registered.pop(address, None) else -3

    def send_probe(self, session: str) -> int:
        return 0 if self.reachable else -102

    def transfer_submit_write(self, session: str, local: int, remote: int, nbytes: int) -> int:
        if session == "nobody:1":
            return 0
        self.next += 1
        self.handles[self.next] = [0, 1]
        return self.next

    def transfer_check_status(self, handle: int) -> int:
        left = self.handles[handle]  # a KeyError here is a crash of the process there
        status = left.pop(0)
        if not left:
            del self.handles[handle]
        return status


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    """The vendor's package, and a process that has no engine yet."""

    class Fake(FakeEngine):
        made: ClassVar[list[FakeEngine]] = []

    module = types.ModuleType("mooncake.engine")
    module.TransferEngine = Fake  # type: ignore[attr-defined]
    package = types.ModuleType("mooncake")
    package.engine = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mooncake", package)
    monkeypatch.setitem(sys.modules, "mooncake.engine", module)
    monkeypatch.setattr(_native, "_engines", {})
    monkeypatch.setattr(_native, "_ipv6", None)
    for name in ("MC_FORCE_TCP", "MC_LOG_LEVEL", "MC_USE_IPV6", "MC_TCP_LANES_PER_PEER"):
        monkeypatch.delenv(name, raising=False)
    return Fake


@pytest.fixture
def made(fake: type[FakeEngine]) -> tuple[NativeEngine, FakeEngine]:
    engine = _native.shared_engine("10.0.0.1", "tcp", "")
    return engine, fake.made[-1]


# --- misuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("handle", [0, (1 << 64) - 1])
def test_a_write_that_did_not_start_is_not_asked_about(handle: int) -> None:
    write = Write(None, handle)
    assert write.ended()
    assert write.failed
    assert write.status == "not started"


@pytest.mark.parametrize(("end", "failed"), [(1, False), (-1, True), (-2, True)])
def test_an_ended_write_is_not_asked_about_again(end: int, failed: bool) -> None:
    class Vendor:
        def __init__(self) -> None:
            self.answers = [0, 0, end]

        def transfer_check_status(self, handle: int) -> int:
            return self.answers.pop(0)

    write = Write(Vendor(), 7)
    assert [write.ended() for _ in range(5)] == [False, False, True, True, True]
    assert write.failed is failed
    assert write.status == end


def test_only_a_peer_that_was_opened_is_written_to(made: tuple[NativeEngine, FakeEngine]) -> None:
    engine, _ = made
    with pytest.raises(RuntimeError, match="was not opened"):
        engine.submit("10.0.0.2:1", 0, 0, 1)
    assert engine.open("10.0.0.2:1", 4096).status is None
    assert engine.knows("10.0.0.2:1")
    assert not engine.submit("10.0.0.2:1", 0, 0, 1).ended()


def test_a_peer_that_does_not_answer(made: tuple[NativeEngine, FakeEngine]) -> None:
    engine, vendor = made
    assert engine.open("nobody:1", 0).failed
    assert not engine.knows("nobody:1")
    assert not engine.waits
    engine.reach("10.0.0.2:1")
    vendor.reachable = False
    with pytest.raises(EngineFault, match=r"no answer .* \(status -102\)") as caught:
        engine.reach("10.0.0.2:1")
    assert caught.value.status == -102


def test_memory_that_was_not_registered(made: tuple[NativeEngine, FakeEngine]) -> None:
    engine, _ = made
    engine.register(4096, 100)
    engine.unregister(4096)
    with pytest.raises(EngineFault) as caught:
        engine.unregister(4096)
    assert caught.value.status == -3


# --- one for a process ----------------------------------------------------------------------------


def test_one_engine_for_the_same_words(fake: type[FakeEngine]) -> None:
    engine = _native.shared_engine("10.0.0.1", "tcp", "")
    assert _native.shared_engine("10.0.0.1", "tcp", "") is engine
    assert _native.shared_engine("10.0.0.1", "rdma", "") is not engine
    assert len(fake.made) == 2


def test_an_engine_is_never_ended(made: tuple[NativeEngine, FakeEngine]) -> None:
    _, vendor = made
    assert sys.getrefcount(vendor) > 3  # one of them is nobody's


def test_another_process_has_its_own(
    fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = _native.shared_engine("10.0.0.1", "tcp", "")
    monkeypatch.setattr(_native, "generation", lambda: 7)
    assert _native.shared_engine("10.0.0.1", "tcp", "") is not engine


def test_its_session(fake: type[FakeEngine]) -> None:
    assert _native.shared_engine("10.0.0.1", "tcp", "").session == "10.0.0.1:12345"
    assert _native.shared_engine("node-7", "tcp", "").session == "node-7:12345"


def test_an_engine_that_does_not_start(fake: type[FakeEngine]) -> None:
    fake.status = -1
    with pytest.raises(BackendUnavailable, match="protocol rdma and devices mlx5_0") as caught:
        _native.shared_engine("10.0.0.1", "rdma", "mlx5_0")
    assert "MC_LOG_LEVEL" in str(caught.value.remedy)
    assert not _native._engines


# --- the environment ------------------------------------------------------------------------------


def test_tcp_is_tcp_also_where_there_is_an_rdma_card(fake: type[FakeEngine]) -> None:
    _native.shared_engine("10.0.0.1", "tcp", "")
    assert fake.made[-1].environment["MC_FORCE_TCP"] == "1"
    assert fake.made[-1].started == ("10.0.0.1", "P2PHANDSHAKE", "tcp", "none")
    _native.shared_engine("10.0.0.1", "rdma", "mlx5_0,mlx5_1")
    assert "MC_FORCE_TCP" not in fake.made[-1].environment
    assert fake.made[-1].started == ("10.0.0.1", "P2PHANDSHAKE", "rdma", "mlx5_0,mlx5_1")
    assert "MC_FORCE_TCP" not in os.environ
    assert "MC_LOG_LEVEL" not in os.environ


def test_what_the_user_says_stays(fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_LOG_LEVEL", "INFO")
    monkeypatch.setenv("MC_FORCE_TCP", "yes")
    _native.shared_engine("10.0.0.1", "tcp", "")
    environment = fake.made[-1].environment
    assert (environment["MC_LOG_LEVEL"], environment["MC_FORCE_TCP"]) == ("INFO", "yes")
    assert os.environ["MC_FORCE_TCP"] == "yes"


@pytest.mark.parametrize(
    ("told", "lanes"), [(None, 8), ("3", 3), ("0", 4), ("many", 4)], ids=["ours", "3", "0", "words"]
)
def test_connections_to_a_peer(
    fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch, told: str | None, lanes: int
) -> None:
    if told is not None:
        monkeypatch.setenv("MC_TCP_LANES_PER_PEER", told)
    engine = _native.shared_engine("10.0.0.1", "tcp", "")
    assert engine.lanes == lanes
    assert fake.made[-1].environment["MC_TCP_LANES_PER_PEER"] == (told or "8")
    assert os.environ.get("MC_TCP_LANES_PER_PEER") == told


def test_ipv6_is_decided_when_the_vendor_is_imported(
    fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"use IPv4.*earlier import") as caught:
        _native.shared_engine("::1", "tcp", "")  # somebody has imported it before us
    assert caught.value.path == "host"
    monkeypatch.setattr(_native, "_ipv6", None)
    monkeypatch.setenv("MC_USE_IPV6", "1")
    with pytest.raises(ConfigError, match="use IPv6"):
        _native.shared_engine("10.0.0.1", "tcp", "")


def test_an_ipv6_engine(fake: type[FakeEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "_ipv6", True)
    assert _native.shared_engine("::1", "tcp", "").session == "[::1]:12345"
    with pytest.raises(ConfigError, match="use IPv6"):
        _native.shared_engine("127.0.0.1", "tcp", "")


def test_the_devices_of_this_machine() -> None:
    try:
        devices: Any = _native.rdma_devices()
    except OSError:
        pytest.skip("there is no RDMA library here")
    assert sorted(devices) == sorted(_listed())


def _listed() -> list[str]:
    try:
        return os.listdir("/sys/class/infiniband")
    except FileNotFoundError:
        return []
