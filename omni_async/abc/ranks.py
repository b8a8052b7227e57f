"""Who this process is among its stage's processes, as its launcher has told it.

In: the environment. Out: rank and replica, each with the variable that said so.
Never: reads ``os.environ`` itself, guesses where a variable makes no sense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import ConfigError

REPLICA = "VLLM_OMNI_REPLICA_ID"
LOCAL_RANKS = (
    "LOCAL_RANK",
    "VLLM_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
)
"""Ranks on this host, the first that is set."""
GLOBAL_RANKS = ("RANK", "RANK_ID")
"""Ranks among all hosts; they count modulo the devices that are visible here."""
DEVICES = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")

_LAST = (1 << 31) - 1


class Told(NamedTuple):
    """A number and where it comes from."""

    number: int
    source: str
    """Such as ``LOCAL_RANK``; for people."""


def rank_from(environ: Mapping[str, str]) -> Told:
    """The tensor-parallel rank of this process: 0 where nothing is set.

    Raises:
        ConfigError: the variable that counts holds no rank; names it.
    """
    for name in LOCAL_RANKS:
        if environ.get(name):
            return Told(_number(name, environ), name)
    for name in GLOBAL_RANKS:
        if environ.get(name):
            rank, devices = _number(name, environ), _visible_devices(environ)
            return Told(rank % devices if devices else rank, name)
    return Told(0, "default")


def device_from(environ: Mapping[str, str]) -> int:
    """The device of this process among those that are visible to it: that of its local rank.

    Raises:
        ConfigError: the variable that counts holds no rank; names it.
    """
    rank, devices = rank_from(environ).number, _visible_devices(environ)
    return rank % devices if devices else rank


def replica_from(environ: Mapping[str, str]) -> Told:
    """The data-parallel replica of this process: 0 where nothing is set.

    Raises:
        ConfigError: the variable holds no number of a replica.
    """
    if environ.get(REPLICA):
        return Told(_number(REPLICA, environ), REPLICA)
    return Told(0, "default")


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ[name].strip()
    if re.fullmatch("[0-9]{1,10}", text) is None or int(text) > _LAST:
        raise ConfigError(
            f"the environment variable {name} has to be a whole number of at least 0, "
            f"not {environ[name]!r}; mend it, or unset it and pass rank and replica"
        )
    return int(text)


def _visible_devices(environ: Mapping[str, str]) -> int:
    """How many devices the launcher shows to this process; 0 where it does not say."""
    listed = next((environ[name] for name in DEVICES if environ.get(name)), "")
    return sum(1 for device in listed.split(",") if device.strip())
