"""The options of every connector: defaults, what files write, what both ends must agree in."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pydantic
import pytest

from omni_async import ConfigError, open_transport, registry
from omni_async.abc import AddressedOptions, Options, StoreOptions
from omni_async.abc.options import known_of
from omni_async.backends.mooncake import MooncakeTransferEngineOptions
from omni_async.backends.mooncake_store import MooncakeStoreOptions
from omni_async.backends.mori import MoriTransferEngineOptions
from omni_async.backends.nixl import NixlOptions
from omni_async.backends.shm import SharedMemoryOptions
from omni_async.backends.yuanrong import YuanrongOptions
from omni_async.backends.yuanrong_te import YuanrongTransferEngineOptions

NAMES = sorted({*registry.names(), *registry.planned_names()})
ADDRESSED = [
    MooncakeTransferEngineOptions,
    MoriTransferEngineOptions,
    NixlOptions,
    YuanrongTransferEngineOptions,
]
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


def refused(model: type[Options], **values: Any) -> str:
    with pytest.raises(pydantic.ValidationError) as caught:
        model(**values)
    return str(caught.value)


# --- what holds for all ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_option_says_what_it_is(name: str) -> None:
    model = registry.options_for(name)
    assert model() == model.model_validate({})  # nothing is required
    for key, field in model.model_fields.items():
        meaning = field.description or ""
        assert meaning.endswith("."), key
        unit = known_of(field).get("unit")
        for suffix, wanted in (("_ms", "milliseconds"), ("_s", "seconds"), ("_seconds", "seconds")):
            if key.endswith(suffix):
                assert unit == wanted, key
        if key in ("memory_pool_size", "segment", "localbuf", "inline_limit"):
            assert unit == "bytes"


@pytest.mark.parametrize("name", NAMES)
def test_options_are_frozen_strict_and_closed(name: str) -> None:
    model = registry.options_for(name)
    options = model()
    with pytest.raises(pydantic.ValidationError):
        setattr(options, "memory_pool_size", 1)  # noqa: B010 - type checkers refuse the plain one
    assert "memory_pool_size" in refused(model, memory_pool_size="1")
    assert "memory_pool_size" in refused(model, memory_pool_size=True)
    assert "nonsense" in refused(model, nonsense=1)
    for word in (math.nan, math.inf):
        assert "buffer_ttl_seconds" in refused(model, buffer_ttl_seconds=word)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_has_every_connector(name: str) -> None:
    text = PAGE.read_text()
    [alias] = [
        word for word in NAMES if registry.options_for(word) is registry.options_for(name)
        and word.islower()
    ]  # fmt: skip
    assert f"{{option-table}} {alias}\n" in text
    assert name in text


# --- both ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "wide"),
    [
        (Options, set()),
        (SharedMemoryOptions, {"socket_dir", "peer"}),
        (MooncakeStoreOptions, {"metadata_server", "master", "proto", "peer"}),
        (YuanrongOptions, {"peer"}),
        (AddressedOptions, {"zmq_port", "curve", "peer", "port_scheme"}),
        (MooncakeTransferEngineOptions, {"zmq_port", "curve", "peer", "port_scheme", "protocol"}),
        (YuanrongTransferEngineOptions, {"zmq_port", "curve", "peer", "port_scheme", "protocol"}),
        (MoriTransferEngineOptions, {"zmq_port", "curve", "peer", "port_scheme", "backend_type"}),
        (NixlOptions, {"zmq_port", "curve", "peer", "port_scheme", "backends"}),
    ],
)
def test_what_both_ends_agree_in(model: type[Options], wide: set[str]) -> None:
    assert model.edge_wide() == wide


def test_which_connectors_cross_hosts() -> None:
    here = {name for name in NAMES if not registry.options_for(name)().cross_host}
    assert here == {"shm", "SharedMemoryConnector", "memory", "MemoryConnector"}
    assert MoriTransferEngineOptions(backend_type="rdma").cross_host
    assert not MoriTransferEngineOptions(backend_type="xgmi", memory_pool_device="cuda").cross_host


def test_which_connectors_have_an_address() -> None:
    addressed = {
        registry.options_for(name) for name in NAMES if registry.options_for(name).addressed
    }
    assert addressed == set(ADDRESSED)


# --- how long payloads are kept -------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, -1, 0.0])
def test_no_time_limit(seconds: float) -> None:
    assert Options(buffer_ttl_seconds=seconds).ttl == math.inf
    assert Options(buffer_ttl_seconds=2).ttl == 2


async def test_without_a_limit_a_payload_waits(namespace: str) -> None:
    spec = {"name": "memory", "extra": {"buffer_ttl_seconds": 0}}
    async with (
        open_transport(spec, role="sender", stage=0, namespace=namespace) as tx,
        open_transport("memory", role="receiver", stage=1, namespace=namespace) as rx,
    ):
        await tx.put("0", "1", "key", "kept")
        with pytest.raises(TimeoutError):  # two turns of the clock, in which it could expire
            await rx.get("0", "1", "another", timeout=0.05)
        assert (await rx.get("0", "1", "key", timeout=5)).value == "kept"


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ADDRESSED)
@pytest.mark.parametrize("word", ["auto", "AUTO", "", "*", "0.0.0.0", "::"])
def test_a_host_to_detect(model: type[AddressedOptions], word: str) -> None:
    options = model(host=word, sender_host=word)
    assert (options.host, options.sender_host) == ("auto", None)


@pytest.mark.parametrize("model", ADDRESSED)
def test_a_host_is_kept_as_it_is(model: type[AddressedOptions]) -> None:
    options = model(host="10.0.0.1", sender_host="Node-7")
    assert (options.host, options.sender_host) == ("10.0.0.1", "Node-7")
    assert "host" in refused(model, host="tcp://10.0.0.1")
    assert "sender_host" in refused(model, sender_host="a b")


@pytest.mark.parametrize("model", ADDRESSED)
def test_a_port_may_be_text(model: type[AddressedOptions]) -> None:
    options = model.model_validate({"zmq_port": "50071", "sender_zmq_port": "1"})
    assert (options.zmq_port, options.sender_zmq_port) == (50071, 1)
    for wrong in (0, 65536, "0", "70000", "5a", "", "-1", "²", 5.5, True, None):
        assert "zmq_port" in refused(model, zmq_port=wrong)


@pytest.mark.parametrize("model", ADDRESSED)
def test_the_scheme_of_ports(model: type[AddressedOptions]) -> None:
    assert model().scheme == "compact"
    assert model(port_scheme="strided").scheme == "strided"
    assert model(peer="vllm-omni").scheme == "strided"
    assert model(peer="vllm-omni", port_scheme="strided").scheme == "strided"
    assert "remove this line" in refused(model, peer="vllm-omni", port_scheme="compact")
    assert "remove" not in refused(model, peer="other", port_scheme="compact")


# --- one by one -----------------------------------------------------------------------------------


PUBLIC = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
SECRET = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"


def test_keys() -> None:
    one = AddressedOptions(
        curve={"server_secret_key": SECRET, "allowed_clients": [PUBLIC, "/etc/more"]}  # type: ignore[arg-type]
    )
    other = AddressedOptions(
        curve={"server_public_key": PUBLIC, "client_secret_key": "/etc/mine"}  # type: ignore[arg-type]
    )
    assert one.curve_keys == {"server_secret_key": SECRET, "allowed_clients": [PUBLIC, "/etc/more"]}
    assert one.edge_values() == other.edge_values() != AddressedOptions().edge_values()
    assert AddressedOptions().curve_keys is None


@pytest.mark.parametrize(
    ("curve", "text"),
    [
        ({}, "a sender needs server_secret_key with allowed_clients, a receiver"),
        ({"server_secret_key": SECRET}, "a sender needs"),
        ({"server_secret_key": SECRET, "allowed_clients": []}, "allowed_clients"),
        ({"server_public_key": PUBLIC, "client_secret_key": ""}, "is not empty"),
        ({"server_public_key": PUBLIC, "client_secret_key": SECRET, "domain": "x"}, "domain"),
        ("x", "curve"),
    ],
)
def test_keys_that_are_none(curve: Any, text: str) -> None:
    assert text in refused(AddressedOptions, curve=curve)


def test_keys_and_a_peer_that_has_none() -> None:
    curve = {"server_public_key": PUBLIC, "client_secret_key": SECRET}
    assert "has no keys" in refused(AddressedOptions, peer="vllm-omni", curve=curve)


def test_a_secret_is_shown_nowhere() -> None:
    curve = {"server_public_key": PUBLIC, "client_secret_key": SECRET}
    options = AddressedOptions(curve=curve)  # type: ignore[arg-type]
    for text in (repr(options), str(options), options.model_dump_json()):
        assert SECRET not in text
    files = AddressedOptions(curve={**curve, "client_secret_key": "/etc/mine"})  # type: ignore[arg-type]
    assert "/etc/mine" in files.model_dump_json()


def test_mooncake_transfer_engine() -> None:
    options = MooncakeTransferEngineOptions()
    assert (options.protocol, options.device_name) == ("rdma", "")
    assert (options.memory_pool_size, options.memory_pool_device) == (None, "cpu")
    assert options.inline_limit == 262144
    for device in ("cpu", "cuda", "cuda:1", "npu", "npu:7"):
        assert MooncakeTransferEngineOptions(memory_pool_device=device).memory_pool_device == device
    for word in ("tcp", "ascend"):
        assert MooncakeTransferEngineOptions.model_validate({"protocol": word}).protocol == word
    assert MooncakeTransferEngineOptions.model_validate({"device_name": None}).device_name == ""
    assert "memory_pool_device" in refused(MooncakeTransferEngineOptions, memory_pool_device="gpu")
    assert "protocol" in refused(MooncakeTransferEngineOptions, protocol="rmda")


def test_stores() -> None:
    options = StoreOptions()
    assert options.model_dump(exclude=set(Options.model_fields)) == {
        "peer": "omni-async",
        "evictable": False,
        "setup_timeout": 10.0,
    }
    assert "peer" in refused(StoreOptions, peer="somebody")
    assert "setup_timeout" in refused(StoreOptions, setup_timeout=0)


def test_mooncake_store() -> None:
    options = MooncakeStoreOptions()
    assert options.model_dump(exclude=set(StoreOptions.model_fields)) == {
        "host": "127.0.0.1",
        "metadata_server": "http://127.0.0.1:8080/metadata",
        "master": "127.0.0.1:50051",
        "segment": 512 << 20,
        "localbuf": 64 << 20,
        "proto": "tcp",
        "rdma": "",
    }
    assert MooncakeStoreOptions(metadata_server="P2PHANDSHAKE", segment=0).segment == 0
    assert "localbuf" in refused(MooncakeStoreOptions, localbuf=0)
    assert "master" in refused(MooncakeStoreOptions, master="")


def test_yuanrong() -> None:
    options = YuanrongOptions()
    assert (options.host, options.port, options.offer_seconds) == ("127.0.0.1", 35001, None)
    assert YuanrongOptions(get_sub_timeout_ms=1500).offer_seconds == 1.5
    assert YuanrongOptions(get_sub_timeout_ms=0).offer_seconds == math.inf
    assert YuanrongOptions.model_validate({"port": "31501"}).port == 31501
    assert "get_sub_timeout_ms" in refused(YuanrongOptions, get_sub_timeout_ms=-1)


def test_yuanrong_transfer_engine() -> None:
    options = YuanrongTransferEngineOptions()
    assert (options.protocol, options.device_name, options.rpc_port) == ("ascend", "auto", "auto")
    for word in ("", None, "auto", " AUTO "):
        read = YuanrongTransferEngineOptions.model_validate(
            {"rpc_port": word, "memory_pool_device": word}
        )
        assert (read.rpc_port, read.memory_pool_device) == ("auto", "npu")
    read = YuanrongTransferEngineOptions.model_validate(
        {"rpc_port": "40000", "memory_pool_device": "NPU:1"}
    )
    assert (read.rpc_port, read.memory_pool_device) == (40000, "npu:1")
    for wrong in ("cpu", 1, "npu:x"):
        assert "memory_pool_device" in refused(
            YuanrongTransferEngineOptions, memory_pool_device=wrong
        )
    assert "rpc_port" in refused(YuanrongTransferEngineOptions, rpc_port="x")


def test_mori() -> None:
    options = MoriTransferEngineOptions()
    assert (options.host, options.backend_type) == ("127.0.0.1", "rdma")
    assert (options.xgmi_num_streams, options.qp_per_transfer, options.post_batch_size) == (
        64,
        1,
        -1,
    )
    read = MoriTransferEngineOptions.model_validate(
        {"backend_type": "XGMI", "memory_pool_device": "cuda"}
    )
    assert read.backend_type == "xgmi"
    for on_host in ({}, {"memory_pool_device": "cpu"}):
        text = refused(MoriTransferEngineOptions, backend_type="xgmi", **on_host)
        assert "has to be 'cuda'" in text
    assert "backend_type" in refused(MoriTransferEngineOptions, backend_type=3)


def test_mori_takes_both_names_of_its_threads() -> None:
    assert MoriTransferEngineOptions().num_worker_threads == 1
    assert MoriTransferEngineOptions(num_workers=4).num_worker_threads == 4
    assert MoriTransferEngineOptions(num_workers=4, num_worker_threads=4).num_workers == 4
    text = refused(MoriTransferEngineOptions, num_workers=4, num_worker_threads=3)
    assert "is another name for num_worker_threads" in text
    assert "num_workers" in refused(MoriTransferEngineOptions, num_workers=True)


def test_nixl() -> None:
    options = NixlOptions()
    assert (options.backends, options.num_threads, options.buffer_ttl_seconds) == (
        ("UCX",),
        0,
        3600,
    )
    assert (options.transfer_timeout_s, options.poll_interval_s) == (300.0, 0.001)
    for written in ("UCX", ["UCX"], ("UCX",)):
        assert NixlOptions.model_validate({"backends": written}).backends == ("UCX",)
    for wrong in ([], "", [3], 3, None):
        assert "backends" in refused(NixlOptions, backends=wrong)
    assert NixlOptions(receive_device="cuda:0", memory_type="VRAM").memory_type == "VRAM"


def test_a_lease_is_a_time_to_live() -> None:
    assert NixlOptions(lease_seconds=60).buffer_ttl_seconds == 60
    assert NixlOptions(buffer_ttl_seconds=60).buffer_ttl_seconds == 60
    assert NixlOptions(buffer_ttl_seconds=60, lease_seconds=60.0).ttl == 60
    assert NixlOptions.model_validate({"lease_seconds": None}).buffer_ttl_seconds == 3600
    assert NixlOptions.model_validate(NixlOptions()) == NixlOptions()
    text = refused(NixlOptions, buffer_ttl_seconds=60, lease_seconds=61)
    assert "is another name for buffer_ttl_seconds" in text
    assert "buffer_ttl_seconds\n" not in refused(NixlOptions, lease_seconds="60")
    assert "buffer_ttl_seconds\n" not in refused(NixlOptions, lease_seconds=True)


async def test_the_refusal_of_a_planned_connector_comes_first(later: str) -> None:
    with pytest.raises(ImportError):
        open_transport({"name": later, "extra": {"nonsense": 1}}, role="sender", stage=0)
    with pytest.raises(ConfigError):
        open_transport({"name": "shm", "extra": {"socket_dir": ""}}, role="sender", stage=0)
