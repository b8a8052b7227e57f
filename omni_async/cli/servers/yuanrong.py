"""A worker of openYuanrong's datasystem, as its wheel brings it.

In: nothing, or another worker. Out: a worker on this host, and what connectors are told of it.
Never: needs etcd, keeps anything after it was closed.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import BackendUnavailable
from ...model import Role
from .running import LOOPBACK, Server

NAME = "YuanrongConnector"
_REMEDY = "pip install 'omni-async[yuanrong]'"
_FOLDERS = {"unix_domain_socket_dir": "uds", "log_dir": "logs", "rocksdb_store_dir": "rocksdb"}
_FILES = {
    "ready_check_path": "ready",
    "health_check_path": "healthy",
    "monitor_config_file": "config",
}


class YuanrongWorker(Server):
    """``datasystem_worker``, with a metastore of its own.

    Args:
        options: more of its options, such as ``--client_dead_timeout_s=3``.
        memory: what it may keep, in bytes.
        beside: another worker, whose metastore is used: what is put by one can be got by the other.
    """

    name = "datasystem_worker"

    def __init__(
        self, *options: str, memory: int = 1 << 30, beside: YuanrongWorker | None = None
    ) -> None:
        super().__init__()
        self._options = options
        self._memory = memory
        self._head = beside or self
        # Its Unix sockets lie here, whose names may not be long.
        self._folder = Path(tempfile.mkdtemp(prefix="omni-yr-", dir="/tmp"))

    @property
    def address(self) -> str:
        """Of the worker, as dscli is told it."""
        return f"{LOOPBACK}:{self.port('worker')}"

    def command(self) -> Sequence[str]:
        # A new start is ready when it says so itself, and knows nothing of what the last one had.
        for name in (*_FILES.values(), *_FOLDERS.values()):
            path = self._folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        paths = {**_FOLDERS, **_FILES}
        return [
            str(_package() / "datasystem_worker"),
            f"--worker_address={self.address}",
            f"--metastore_address={LOOPBACK}:{self._head.port('metastore')}",
            f"--start_metastore_service={str(self._head is self).lower()}",
            # The other kind starts 5 s later: it waits for members of a ring.
            "--enable_distributed_master=false",
            f"--shared_memory_size_mb={self._memory >> 20}",
            *(f"--{option}={self._folder / name}" for option, name in paths.items()),
            *self._options,
        ]

    def environment(self) -> Mapping[str, str]:
        return {"LD_LIBRARY_PATH": str(_package() / "lib")}

    def answers(self) -> bool:
        return (self._folder / _FILES["ready_check_path"]).exists()

    def extra(self, role: Role) -> dict[str, Any]:
        return {"host": LOOPBACK, "port": self.port("worker")}

    def end(self, patience: float = 0.0) -> None:
        # In peace it takes 5 s, to give what it has to workers that there are not.
        super().end(patience)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _package() -> Path:
    """Where the wheel was unpacked.

    Raises:
        BackendUnavailable: it was not.
    """
    try:
        found = importlib.util.find_spec("yr.datasystem")
    except ImportError:
        found = None
    if found is None or found.origin is None:
        raise BackendUnavailable("there is no datasystem_worker", backend=NAME, remedy=_REMEDY)
    return Path(found.origin).parent
