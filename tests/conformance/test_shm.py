"""The promises of a transport, kept by ``shm``; opening and closing also with socket files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from omni_async.model import Role
from omni_async.testing.conformance import TransportConformance
from omni_async.testing.conformance.lifecycle import Lifecycle


class TestShm(TransportConformance):
    connector = "shm"


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
