"""The promises of a transport, kept by ``shm``; opening and closing also with socket files.

All of them on asyncio; on uvloop those within one loop, and the others in the soak: what differs there is how
sockets and timers are watched, which one process shows as well as two.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.base import APART, ONE_LOOP
from omni_async.testing.conformance.lifecycle import Lifecycle
from omni_async.testing.rig import LoopKind


class TestShm(TransportConformance):
    connector = "shm"
    loops: ClassVar[tuple[LoopKind, ...]] = ("asyncio",)


class TestShmOnUvloop(TestShm):
    loops = ("uvloop",)
    ways = ONE_LOOP


@pytest.mark.soak
class TestShmOnUvloopApart(TestShm):
    loops = ("uvloop",)
    ways = APART


class TestShmInAFolder(Lifecycle):
    connector = "shm"
    loops = ("asyncio",)
    folder: Path

    @pytest.fixture(autouse=True)
    def make_folder(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="oa-") as name:
            self.folder = Path(name)
            yield

    def extra(self, role: Role) -> Mapping[str, Any]:
        return {"socket_dir": str(self.folder)}

    def folders(self) -> tuple[Path, ...]:
        return (self.folder,)
