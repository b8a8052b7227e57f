"""Options are checked, knobs pass, slips of either are told with what was meant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_async import registry
from omni_async.abc import Options
from omni_async.abc.options import option
from omni_async.deploy.knobs import KNOBS, judge, kind_of, validate

SHM = registry.options_for("shm")
MOONCAKE = registry.options_for("mooncake")
STORE = registry.options_for("mooncake-store")
NIXL = registry.options_for("nixl")

# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "options", "meant"),
    [
        ("memory_pol_size", SHM, "memory_pool_size"),
        ("Memory_Pool_Size", SHM, "memory_pool_size"),
        ("memory_size", SHM, "memory_pool_size"),
        ("zmqport", MOONCAKE, "zmq_port"),
        ("sender_hst", MOONCAKE, "sender_host"),
        ("protcol", MOONCAKE, "protocol"),
        ("proto", MOONCAKE, "protocol"),  # as the store calls it
        ("protocol", STORE, "proto"),
        ("backend_type", NIXL, "backends"),
        ("codec_chunk_frame", SHM, "codec_chunk_frames"),
        ("codecchunkframes", SHM, "codec_chunk_frames"),
        ("codec_left_contxt_frames", SHM, "codec_left_context_frames"),
        ("Codec_Streaming", SHM, "codec_streaming"),
        ("connector_get_sleep", SHM, "connector_get_sleep_s"),
    ],
)
def test_a_slip_is_told(key: str, options: type[Options], meant: str) -> None:
    assert judge(key, options) == f"unknown option; did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("zmq_port", MOONCAKE),
        ("codec_chunk_frames", SHM),
        ("connector_get_max_wait", NIXL),
        ("codec_right_context_frames", SHM),  # a word more is another thing, not a slip
        ("my_own_knob", SHM),
        ("flow_steps", MOONCAKE),
        ("x", SHM),
    ],
)
def test_what_passes(key: str, options: type[Options]) -> None:
    assert judge(key, options) is None


def test_an_option_of_another_connector_is_told() -> None:
    """It stays behind when a file's connector is changed, and would be without effect."""
    assert judge("socket_dir", NIXL) == "is an option of SharedMemoryConnector only; remove it"
    text = judge("memory_pool_device", SHM)
    assert text is not None
    assert text.startswith("is an option of MooncakeTransferEngineConnector and Mori")


def test_every_knob_is_told() -> None:
    for name, knob in KNOBS.items():
        assert knob.kind, name
        assert knob.meaning.endswith("."), name


def connectors_in(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if str(node.get("name", "")).endswith("Connector"):
            yield node
        for item in node.values():
            yield from connectors_in(item)
    elif isinstance(node, list):
        for item in node:
            yield from connectors_in(item)


def test_files_that_people_have_pass(peer_wheel: Path) -> None:
    keys: set[str] = set()
    for path in (peer_wheel / "vllm_omni" / "deploy").glob("*.yaml"):
        for connector in connectors_in(yaml.safe_load(path.read_text())):
            extra = connector.get("extra") or {}
            options = registry.options_for(connector["name"])
            for key in extra:
                assert judge(key, options) is None, (path.name, key)
                assert key in KNOBS or key in options.model_fields, (path.name, key)
            own = {key: value for key, value in extra.items() if key in options.model_fields}
            assert validate(options, own)[1] == [], path.name
            keys |= set(extra)
    assert len(keys) >= 50


# --- values ---------------------------------------------------------------------------------------


class Bare(Options):
    """Kinds that no connector has so far."""

    flag: bool = option(False, "A truth.")
    ratio: float = option(0.5, "A number.", gt=0)
    level: int | None = option(None, "A level.", ge=1)
    either: int | Literal["auto"] = option("auto", "A number or a word.")
    deep: Annotated[Annotated[int, pydantic.Field(ge=2)], "a note"] | None = option(None, "Deep.")
    several: tuple[str, ...] = option((), "Words.")


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("flag", "true or false"),
        ("ratio", "a number above 0"),
        ("level", "a whole number of at least 1"),
        ("either", "a whole number or 'auto'"),
        ("deep", "a whole number of at least 2"),
        ("several", "something else"),
        ("inline_limit", "a whole number from 0 to 1048576"),
        ("memory_pool_size", "a whole number above 0"),
    ],
)
def test_how_a_kind_is_told(key: str, told: str) -> None:
    assert kind_of(Bare.model_fields[key]) == told


def test_kinds_of_connectors_are_all_told() -> None:
    for name in {*registry.names(), *registry.planned_names()}:
        for key, field in registry.options_for(name).model_fields.items():
            assert "something else" not in kind_of(field), (name, key)


@pytest.mark.parametrize(
    ("options", "values", "told"),
    [
        (SHM, {"memory_pool_size": "x"}, "has to be a whole number above 0, not 'x'"),
        (SHM, {"memory_pool_size": "1"}, "has to be a whole number above 0, not '1'"),
        (SHM, {"socket_dir": ""}, "has to be text that is not empty, not ''"),
        (SHM, {"peer_timeout": True}, "has to be a number above 0, not True"),
        (MOONCAKE, {"zmq_port": 70000}, "has to be a port from 1 to 65535, not 70000"),
        (MOONCAKE, {"peer": "x"}, "has to be 'omni-async' or 'vllm-omni', not 'x'"),
        (MOONCAKE, {"host": "a b"}, "a host is a name or an address without a port, not 'a b'"),
        (NIXL, {"backends": [3]}, "has to be a name such as 'UCX', or a list of names, not [3]"),
        (NIXL, {"num_threads": None}, "has to be a whole number of at least 0, not None"),
        (Bare, {"level": ["x" * 99]}, f"has to be a whole number of at least 1, not ['{'x' * 35}..."),
        (SHM, {"nonsense": 1}, "unknown option"),
        (SHM, {"socket_dirs": "x"}, "unknown option; did you mean 'socket_dir'?"),
        (
            MOONCAKE,
            {"peer": "vllm-omni", "port_scheme": "compact"},
            "'peer: vllm-omni' means strided ports; remove this line",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_plain_words(
    options: type[Options], values: dict[str, Any], told: str
) -> None:
    key = list(values)[-1]
    assert validate(options, values) == (None, [((key,), told)])


def test_each_wrong_option_is_told_once() -> None:
    options, wrong = validate(NIXL, {"backends": [3, 4], "zmq_port": 0, "num_threads": 2})
    assert options is None
    assert [place for place, _ in wrong] == [("zmq_port",), ("backends",)]


def test_what_is_right_comes_back() -> None:
    options, wrong = validate(MOONCAKE, {"zmq_port": 50061, "protocol": "tcp"})
    assert wrong == []
    assert options == MOONCAKE.model_validate({"zmq_port": 50061, "protocol": "tcp"})


# --- values out of environment variables ----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "key", "text", "value"),
    [
        (MOONCAKE, "zmq_port", "50051", 50051),
        (MOONCAKE, "sender_zmq_port", "50051", 50051),
        (MOONCAKE, "memory_pool_size", "4096", 4096),
        (MOONCAKE, "buffer_ttl_seconds", "0.5", 0.5),
        (MOONCAKE, "protocol", "tcp", "tcp"),
        (MOONCAKE, "device_name", "mlx5_0", "mlx5_0"),
        (MOONCAKE, "device_name", 0, "0"),  # was read as a number on its way here
        (MOONCAKE, "host", True, "true"),
        (MOONCAKE, "zmq_port", 50051, 50051),
        (NIXL, "backends", "UCX", ("UCX",)),
        (NIXL, "memory_type", "DRAM", "DRAM"),
        (Bare, "flag", "true", True),
        (Bare, "flag", True, True),
        (Bare, "either", "7", 7),
        (Bare, "either", "auto", "auto"),
        (NIXL, "backends", ["UCX"], ("UCX",)),
    ],
)
def test_text_is_read_as_what_the_option_is(
    options: type[Options], key: str, text: Any, value: Any
) -> None:
    read, wrong = validate(options, {key: text}, {key})
    assert wrong == []
    assert getattr(read, key) == value


@pytest.mark.parametrize(
    ("options", "key", "text"),
    [(MOONCAKE, "zmq_port", "x"), (MOONCAKE, "memory_pool_size", ""), (Bare, "flag", "perhaps")],
)
def test_text_that_is_nothing_of_the_kind(options: type[Options], key: str, text: str) -> None:
    read, wrong = validate(options, {key: text}, {key, "and_another"})
    assert read is None
    [(place, told)] = wrong
    assert place == (key,)
    assert told.endswith(f"not {text!r}")


def test_an_unknown_key_out_of_a_variable() -> None:
    assert validate(SHM, {"nonsense": "1"}, {"nonsense"})[1] == [(("nonsense",), "unknown option")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(deadline=None)
@given(
    name=st.sampled_from(sorted({*registry.names(), *registry.planned_names()})),
    data=st.data(),
    lax=st.booleans(),
)
def test_whatever_stands_there_gets_an_answer(name: str, data: st.DataObject, lax: bool) -> None:
    model = registry.options_for(name)
    keys = st.sampled_from(sorted(model.model_fields)) | st.text(max_size=8)
    values = data.draw(st.dictionaries(keys, JSON, max_size=4))
    options, wrong = validate(model, values, set(values) if lax else ())
    assert (options is None) == bool(wrong)
    for place, told in wrong:
        assert place[0] in {*values, *model.model_fields}
        assert told
    for key in values:
        judge(key, model)
