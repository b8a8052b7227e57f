"""When two names of hosts may be one host."""

from __future__ import annotations

import pytest

from omni_async.deploy import load_deploy
from omni_async.deploy.hosts import checked_host, is_host, may_be_one
from tests.deploy.files import mistakes


@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        ("a", "a", True),
        ("Node-A", "node-a", True),
        ("a", "b", False),
        ("a", None, True),
        ("auto", "b", True),
        ("0.0.0.0", "b", True),
        ("localhost", "127.0.0.1", True),
        ("::1", "LOCALHOST", True),
        ("localhost", "a", False),
    ],
)
def test_two_names(first: str | None, second: str | None, one: bool) -> None:
    assert may_be_one(first, second) is one
    assert may_be_one(second, first) is one


@pytest.mark.parametrize("name", [None, "", "auto", "AUTO", "*", "::", "a b", "http://a"])
def test_what_names_nobody(name: str | None) -> None:
    assert not is_host(name)


@pytest.mark.parametrize(
    ("text", "host"), [("node-a", "node-a"), ("[::1]", "::1"), ("10.0.0.1", "10.0.0.1"), ("", "")]
)
def test_a_host_of_a_stage(text: str, host: str) -> None:
    assert checked_host(text) == host
    source = {"stages": [{"stage_id": 0, "host": text}]}
    assert load_deploy(source).stage(0).host == host


@pytest.mark.parametrize("text", ["a b", "http://a", "a/b", "[::1", "node-a:50051"])
def test_no_host(text: str) -> None:
    found = mistakes({"stages": [{"stage_id": 0, "host": text}]})
    assert "a host is a name or an address" in found["stages[0].host"]
