"""Statuses: each is told in words that say where to look."""

from __future__ import annotations

import pytest

from omni_async import EngineFault
from omni_async.backends.mooncake_store.codes import fault, words
from omni_async.errors import ServerUnreachable


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (-200, "`segment`"),
        (-707, "`--default_kv_lease_ttl`"),
        (-800, "`host`"),
        (-900, "the master at 10.0.0.1:50051 does not answer (option `master`)"),
        (-901, "stopped or overloaded"),
        (-1003, "elects"),
        (-1104, "`--root_fs_dir`"),
        (-1605, "`--root_fs_dir`"),
        (-1701, "quota"),
        (-999, "MC_LOG_LEVEL"),
    ],
)
def test_words(status: int, told: str) -> None:
    assert told in words(status, "10.0.0.1:50051")


@pytest.mark.parametrize(("status", "kind"), [(-900, ServerUnreachable), (-800, EngineFault)])
def test_errors(status: int, kind: type[EngineFault]) -> None:
    error = fault(status, "cannot put k", "m")
    assert type(error) is kind
    assert error.status == status
    assert error.backend == "MooncakeStoreConnector"
    assert str(error).startswith("cannot put k: ")
    assert f"(status {status})" in str(error)
