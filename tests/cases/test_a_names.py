"""Names: every key, request id and namespace works, and none is taken for another."""

from __future__ import annotations

from typing import Any

import pytest

import omni_async
from tests.cases.steps import CHAIN, Pair, block
from tests.pairs import open_pair

pytestmark = pytest.mark.usefixtures("shm_listing")


# --- A13: names -----------------------------------------------------------------------------------

NAMES = [
    "x" * 300,
    "x" * 299 + "y",
    "a/b",
    "a_b",
    "a:b",
    "a\0b",
    "a\0c",
    "réq",
    "re\u0301q",  # the same letter in two code points is another key
    "..",
    "/",
    " ",
    "-",
    "--help",
    "%s",
    "🎧",
    "k" * 1024,
]


async def test_every_name_is_a_key_of_its_own(pair: Pair) -> None:
    tx, rx = pair
    for index, name in enumerate(NAMES):
        await tx.put("0", "1", name, {"number": index, "bulk": block(index)}, request_id=name)
    for index, name in reversed(list(enumerate(NAMES))):
        value = (await rx.get("0", "1", name, timeout=5)).value
        assert value["number"] == index
        assert (value["bulk"] == index).all()


@pytest.mark.parametrize("name", ["", "x" * 1025, "é" * 513, "\ud800", 5, None, b"k"], ids=repr)
async def test_what_is_no_key_is_refused_by_both_sides(pair: Pair, name: Any) -> None:
    tx, rx = pair
    with pytest.raises(omni_async.UsageError, match="key"):
        await tx.put("0", "1", name, 1)
    with pytest.raises(omni_async.UsageError, match="key"):
        await rx.get("0", "1", name, timeout=0)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
async def test_every_name_is_a_namespace(name: str, namespace: str) -> None:
    name = f"{name}{namespace}"
    async with open_pair("shm", name) as (tx, rx), open_pair("shm", name + "'") as (other, _):
        await other.put("0", "1", "k", "another's")
        await tx.put("0", "1", "k", name)
        assert (await rx.get("0", "1", "k", timeout=5)).value == name


# --- A16: shared memory between hosts -------------------------------------------------------------


def test_shared_memory_between_hosts_is_refused_at_load() -> None:
    first, second = CHAIN["stages"]
    apart = {**CHAIN, "stages": [{**first, "host": "node-a"}, {**second, "host": "node-b"}]}
    with pytest.raises(omni_async.ConfigError, match="0->1") as caught:
        omni_async.load_deploy(apart)
    for word in ("SharedMemoryConnector", "node-a", "node-b"):
        assert word in str(caught.value)
    together = {**CHAIN, "stages": [{**first, "host": "node-a"}, {**second, "host": "node-a"}]}
    omni_async.load_deploy(together)
