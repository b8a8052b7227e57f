"""What is done about the vendor's texts, with a vendor that says them when a test wants it to."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from omni_async.backends.yuanrong import _native
from omni_async.backends.yuanrong._native import Client, Refused

CROWDED = "No space available], msg: [There are too many exclusive connections in use. Connection"
SILENT = "RPC unavailable], msg: [[RPC_RECV_TIMEOUT] Rpc service has not responded, traceId: 1"
FULL = "Out of memory], msg: [Shared memory no space in arena: 3, traceId: 2. RPC Retry detail: ["
TOO_MUCH = (
    "Out of memory], msg: [Thread ID 14 Out of memory. Resource allocation has reached the threshold "
    "limit.Total allocated 7, required size 9, threshold size: 1048576"
)
MODE = (
    "Invalid parameter], msg: [The write mode, consistency type or cache type cannot be modified."
)


class KVClient:
    """Says what :attr:`says` returns for a call, if anything."""

    made: ClassVar[list[KVClient]] = []
    calls: ClassVar[list[tuple[str, int, bool]]] = []
    """Which, of a client with which time limit, with a connection of its own."""
    says: ClassVar[Callable[[str, KVClient], str | None]]

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout_ms: int,
        req_timeout_ms: int,
        enable_exclusive_connection: bool,
    ) -> None:
        self.host = host
        self.limit = req_timeout_ms
        self.exclusive = enable_exclusive_connection
        self.made.append(self)

    def _called(self, what: str) -> None:
        self.calls.append((what, self.limit, self.exclusive))
        text = type(self).says(what, self)
        if text is not None:
            raise RuntimeError(f"code: [{text}]")

    def init(self) -> None:
        self._called("init")

    def set(self, name: str, data: Any, mode: int, ttl: int) -> None:
        self._called("set")

    def mcreate(self, names: list[str], sizes: list[int], *rest: int) -> None:
        self._called("probe" if sizes[0] > 1 << 40 else "mcreate")

    def exist(self, names: list[str]) -> list[bool]:
        self._called("exist")
        return [False] * len(names)

    def delete(self, names: list[str]) -> list[str]:
        self._called("delete")
        return []


class WriteMode:
    NONE_L2_CACHE = 0
    NONE_L2_CACHE_EVICT = 3


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> type[KVClient]:
    KVClient.made, KVClient.calls = [], []
    KVClient.says = lambda what, client: None
    monkeypatch.setattr(_native, "load", lambda: (KVClient, WriteMode))
    return KVClient


@pytest.fixture
def client(vendor: type[KVClient]) -> Client:
    return Client("127.0.0.1", 1, 5000, False)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def put(client: Client, nbytes: int = 4) -> None:
    client.put("x", memoryview(bytes(nbytes)), 0, time.monotonic() + 60)


def asked(vendor: type[KVClient]) -> list[tuple[str, int]]:
    return [(what, limit) for what, limit, _ in vendor.calls if what != "init"]


def test_what_takes_memory_has_little_time(client: Client, vendor: type[KVClient]) -> None:
    put(client)
    put(client, 64 << 20)
    client.contains(["x"])
    assert asked(vendor) == [("set", 250), ("set", 1000), ("exist", 5000)]


def test_no_more_time_than_the_user_gives(vendor: type[KVClient]) -> None:
    put(Client("127.0.0.1", 1, 200, False))
    assert asked(vendor) == [("set", 200)]


def test_a_busy_worker_has_more_time(client: Client, vendor: type[KVClient]) -> None:
    vendor.says = lambda what, one: SILENT if what == "set" and one.limit < 5000 else None
    put(client)
    assert asked(vendor) == [("set", 250), ("set", 5000)]
    with pytest.raises(Refused) as caught:
        client.put("x", memoryview(b"x"), 0, time.monotonic() - 1)
    assert caught.value.kind == "silent"
    assert caught.value.text == "[RPC_RECV_TIMEOUT] Rpc service has not responded"


def test_a_crowded_worker(client: Client, vendor: type[KVClient]) -> None:
    vendor.says = lambda what, one: CROWDED if one.exclusive and what != "init" else None
    assert client.contains(["x", "y"]) == b"\0\0"
    put(client)
    assert [exclusive for what, _, exclusive in vendor.calls if what != "init"] == [
        True,
        False,
        False,
    ]


def test_what_cannot_be_replaced_is_deleted(client: Client, vendor: type[KVClient]) -> None:
    vendor.says = lambda what, one: (
        MODE if what == "set" and ("delete", 5000) not in asked(vendor) else None
    )
    put(client)
    assert asked(vendor) == [("set", 250), ("delete", 5000), ("set", 5000)]


def test_full_or_too_small(client: Client, vendor: type[KVClient]) -> None:
    says = {"set": FULL, "probe": TOO_MUCH}
    vendor.says = lambda what, one: says.get(what)
    with pytest.raises(Refused) as caught:
        put(client, 500_000)
    assert (caught.value.kind, caught.value.nbytes, caught.value.limit) == (
        "full",
        500_000,
        1 << 20,
    )
    with pytest.raises(Refused) as caught:
        put(client, 950_000)  # the allocator takes 1 MiB for it
    assert caught.value.kind == "large"
    # The worker was started again with more, and has room.
    says["probe"] = TOO_MUCH.replace("1048576", str(1 << 30))
    del says["set"]
    put(client, 950_000)


def test_connecting_waits_until_it_is_ready(vendor: type[KVClient], port: int) -> None:
    said = iter(["Not ready], msg: [Worker not ready"] * 3)
    vendor.says = lambda what, one: next(said, None) if what == "exist" else None
    Client("localhost", port, 5000, False).connect(time.monotonic() + 60)
    assert asked(vendor) == [("exist", 5000)] * 4
    assert vendor.made[0].host == "127.0.0.1"


def test_connecting_gives_up(vendor: type[KVClient], port: int) -> None:
    vendor.says = lambda what, one: SILENT
    with pytest.raises(Refused, match="has not responded"):
        Client("127.0.0.1", port, 5000, False).connect(time.monotonic() + 0.1)


def test_texts_that_are_no_codes(client: Client, vendor: type[KVClient]) -> None:
    vendor.says = lambda what, one: "Runtime error], msg: [Thread ID 3 went wrong\nLine of code : 7"
    with pytest.raises(Refused) as caught:
        client.contains(["x"])
    assert (caught.value.kind, caught.value.status) == ("fault", "Runtime error")
    assert caught.value.text == "went wrong"
