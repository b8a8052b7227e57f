"""Options of an instance: what vLLM's configuration means here, and every mistake in it at once."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from omni_async.errors import ConfigError
from omni_async.kv.control import KVOptions, load_kv_config
from omni_async.kv.control.options import EXTRA, is_trusted

PREFILL = {
    "kv_connector": "MoRIIOConnector",
    "kv_role": "kv_producer",
    EXTRA: {
        "proxy_ip": "127.0.0.1",
        "proxy_ping_port": "36367",
        "http_port": "20005",
        "handshake_port": "6301",
        "notify_port": "6105",
    },
}


def options(**extra: Any) -> KVOptions:
    return load_kv_config({"kv_role": "kv_both", EXTRA: extra}).options


def mistakes(source: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_kv_config(source)
    assert caught.value.path == (caught.value.mistakes[0].path or None)
    for mistake in caught.value.mistakes:
        assert str(mistake) in str(caught.value)
    return {mistake.path: mistake.text for mistake in caught.value.mistakes}


def wrong(**extra: Any) -> dict[str, str]:
    found = mistakes({"kv_role": "kv_both", EXTRA: extra})
    return {path.removeprefix(f"{EXTRA}."): text for path, text in found.items()}


@pytest.mark.parametrize("source", [PREFILL, json.dumps(PREFILL)])
def test_what_vllm_takes(source: Any) -> None:
    config = load_kv_config(source)
    assert config.roles == ("P",)
    found = config.options
    assert (found.proxy_ip, found.proxy_ping_port, found.http_port) == ("127.0.0.1", 36367, 20005)
    assert (found.handshake_port, found.notify_port, found.host_ip) == (6301, 6105, "auto")
    assert (found.transfer_timeout, found.defer_timeout, found.mode) == (30, 60, "WRITE")


def test_defaults() -> None:
    found = options()
    assert (found.proxy_ip, found.http_port) == ("", None)
    assert (found.proxy_ping_port, found.handshake_port, found.notify_port) == (36367, 6301, 61005)
    assert found == load_kv_config({"kv_role": "kv_consumer"}).options


@pytest.mark.parametrize(
    ("value", "mode"),
    [("true", "READ"), ("True", "READ"), ("1", "READ"), (1, "READ"), (True, "READ"), ("0", "WRITE"), ("false", "WRITE")],
)  # fmt: skip
def test_read_mode_in_all_its_spellings(value: Any, mode: str) -> None:
    assert options(read_mode=value).mode == mode


def test_numbers_as_text() -> None:
    found = options(
        transfer_timeout="2.5", defer_timeout=7, qp_per_transfer="4", post_batch_size="-1"
    )
    assert (found.transfer_timeout, found.defer_timeout) == (2.5, 7)
    assert (found.qp_per_transfer, found.post_batch_size) == (4, -1)


@pytest.mark.parametrize(
    "value", [None, 0, -1, "nan", "inf", float("nan"), float("inf"), "soon", True]
)
@pytest.mark.parametrize("key", ["transfer_timeout", "defer_timeout", "handshake_timeout"])
def test_times_that_are_none(key: str, value: Any) -> None:
    found = wrong(**{key: value})
    assert list(found) == [key]
    assert found[key].startswith("has to be a number above 0, not")


def test_what_moves_the_bytes() -> None:
    assert options(backend="RDMA", num_workers=2).connector == (
        "MoriTransferEngineConnector",
        {
            "backend_type": "rdma",
            "qp_per_transfer": 1,
            "post_batch_size": -1,
            "num_worker_threads": 2,
        },
    )
    assert options(backend="mooncake", backend_options={"protocol": "tcp"}).connector == (
        "MooncakeTransferEngineConnector",
        {"protocol": "tcp"},
    )
    assert options(backend="NixlConnector").connector == ("NixlConnector", {})


def test_every_mistake_at_once_with_its_path() -> None:
    found = mistakes(
        {
            "kv_connector": "NixlConnector",
            "kv_rol": "kv_producer",
            EXTRA: {
                "proxy_ip": "10.0.0.1:5",
                "proxy_ping_port": 0,
                "http_port": "http",
                "handshake_port": 70000,
                "notify_prot": 6105,
                "host_ip": "a/b",
                "read_mode": "maybe",
                "backend": "mooncak",
                "ping_interval": 4,
                "something": 1,
            },
        }
    )
    assert list(found) == [
        "kv_role",
        "kv_connector",
        "kv_rol",
        *(
            f"{EXTRA}.{key}"
            for key in (
                "proxy_ip",
                "proxy_ping_port",
                "http_port",
                "handshake_port",
                "host_ip",
                "read_mode",
                "backend",
                "ping_interval",
                "notify_prot",
                "something",
            )
        ),
    ]
    assert "did you mean 'kv_role'?" in found["kv_rol"]
    assert found[f"{EXTRA}.handshake_port"] == "has to be a port from 1 to 65535, not 70000"
    assert found[f"{EXTRA}.notify_prot"] == "unknown option; did you mean 'notify_port'?"
    assert found[f"{EXTRA}.something"] == "unknown option"
    assert "did you mean 'mooncake'?" in found[f"{EXTRA}.backend"]
    assert found[f"{EXTRA}.read_mode"] == "has to be true or false, not 'maybe'"
    assert "without a port" in found[f"{EXTRA}.proxy_ip"]


def test_a_proxy_has_to_be_told_where_requests_go() -> None:
    assert wrong(proxy_ip="127.0.0.1") == {
        "http_port": "has to be there with 'proxy_ip': the proxy sends requests to it"
    }


def test_options_of_the_backend_are_looked_at() -> None:
    found = wrong(backend="mooncake", backend_options={"protocol": "pigeon", "zmq_prot": 1})
    assert list(found) == ["backend_options"]
    assert "protocol has to be" in found["backend_options"]
    assert "zmq_prot unknown option; did you mean 'zmq_port'?" in found["backend_options"]


def test_hosts_that_requests_may_name() -> None:
    trusted = options(trusted_remote_hosts=["node-1", "10.0.0.0/8", "fd00::/8", "::1"])
    for host, told in {
        "node-1": True,
        "node-2": False,
        "10.1.2.3": True,
        "11.1.2.3": False,
        "fd12::1": True,
        "::1": True,
        "::2": False,
    }.items():
        assert is_trusted(host, trusted.trusted_remote_hosts) is told
        assert is_trusted(host, options().trusted_remote_hosts)
        assert not is_trusted(host, ())
    for value in (["10.0.0.1/8"], ["a b"], [""], [5], "node-1"):
        assert list(wrong(trusted_remote_hosts=value)) == ["trusted_remote_hosts"]


def test_what_is_no_configuration() -> None:
    assert "not JSON" in mistakes("{")[""]
    assert "has to be an object" in mistakes("[]")[""]
    assert mistakes({"kv_role": "kv_both", EXTRA: [1]}) == {EXTRA: "has to be an object, not [1]"}
    assert load_kv_config({"kv_role": "kv_both", EXTRA: None}).roles == ("P", "D")


def test_keys_of_the_engine_are_left_alone() -> None:
    load_kv_config({**PREFILL, "kv_buffer_device": "cuda", "kv_rank": 0, "engine_id": "x"})


def test_older_variables_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="omni_async"):
        found = load_kv_config(
            PREFILL,
            {
                "VLLM_MORIIO_CONNECTOR_READ_MODE": "1",
                "VLLM_MORIIO_SOMETHING": "1",
                "VLLM_OTHER": "1",
            },
        )
    assert found.options.mode == "WRITE"
    first, second = (record.getMessage() for record in caplog.records)
    assert "VLLM_MORIIO_CONNECTOR_READ_MODE" in first
    assert f"{EXTRA}.read_mode" in first
    assert "VLLM_MORIIO_SOMETHING" in second
