"""Rank and replica as launchers tell them."""

from __future__ import annotations

import pytest

from omni_async import ConfigError
from omni_async.abc.ranks import (
    DEVICES,
    GLOBAL_RANKS,
    LOCAL_RANKS,
    device_from,
    rank_from,
    replica_from,
)


def test_without_a_launcher_there_is_one_rank_of_one_replica() -> None:
    assert rank_from({}) == (0, "default")
    assert replica_from({}) == (0, "default")
    assert rank_from({"LOCAL_RANK": "", "RANK": ""}) == (0, "default")
    assert replica_from({"VLLM_OMNI_REPLICA_ID": ""}) == (0, "default")


def test_the_first_that_is_set_counts() -> None:
    names = (*LOCAL_RANKS, *GLOBAL_RANKS)
    assert names == (
        "LOCAL_RANK",
        "VLLM_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "RANK",
        "RANK_ID",
    )
    environ = {name: str(number) for number, name in enumerate(names)}
    for number, name in enumerate(names):
        assert rank_from(environ) == (number, name)
        del environ[name]
    assert rank_from(environ) == (0, "default")


@pytest.mark.parametrize(
    ("visible", "rank"),
    [
        ({}, 13),
        ({"CUDA_VISIBLE_DEVICES": ""}, 13),
        ({"CUDA_VISIBLE_DEVICES": " , "}, 13),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0, 1, "}, 1),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3,4", "CUDA_VISIBLE_DEVICES": "0,1"}, 3),
        ({"ASCEND_RT_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}, 1),
    ],
)
def test_a_global_rank_counts_modulo_what_is_visible(visible: dict[str, str], rank: int) -> None:
    assert DEVICES == ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    for name in GLOBAL_RANKS:
        assert rank_from({name: "13", **visible}) == (rank, name)
    assert rank_from({"LOCAL_RANK": "13", **visible}).number == 13


def test_a_replica_is_told_by_its_own_variable() -> None:
    environ = {"VLLM_OMNI_REPLICA_ID": " 3 ", "RANK": "9"}
    assert replica_from(environ) == (3, "VLLM_OMNI_REPLICA_ID")


@pytest.mark.parametrize("text", ["one", "-1", "1.0", "0x1", "²", "1 2", str(1 << 31), "9" * 5000])
@pytest.mark.parametrize("name", [*LOCAL_RANKS, *GLOBAL_RANKS])
def test_what_is_no_rank_is_named(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"variable {name} has to be a whole number"):
        rank_from({name: text, "CUDA_VISIBLE_DEVICES": "0"})


def test_what_is_no_replica_is_named() -> None:
    with pytest.raises(ConfigError, match=r"VLLM_OMNI_REPLICA_ID has to be .* not 'b'"):
        replica_from({"VLLM_OMNI_REPLICA_ID": "b"})


@pytest.mark.parametrize(
    ("environ", "device"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "3"}, 3),
        ({"LOCAL_RANK": "3", "ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"}, 3),
        ({"LOCAL_RANK": "3", "ASCEND_RT_VISIBLE_DEVICES": "7"}, 0),
        ({"RANK": "9", "ASCEND_RT_VISIBLE_DEVICES": "0,1,2,3"}, 1),
    ],
)
def test_the_device_of_a_rank(environ: dict[str, str], device: int) -> None:
    assert device_from(environ) == device
