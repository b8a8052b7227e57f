"""vLLM-Omni's connectors and its chunk adapter, unmodified, without the engine around them.

In: the published wheel, or a folder it was unpacked to. Out: their classes.
Never: changes a file of the wheel; every module that gets loaded is compared with the wheel's own hashes.

They are part of a package whose ``__init__`` files import the whole engine. These are left out, and the few
names that their modules import from elsewhere are stood in for (:data:`STAND_INS`, :mod:`.peer_request`).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import importlib.util
import io
import sys
import types
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from ...model import Role
from ..on_this_host import LOOPBACK
from . import peer_vendors
from .peer_request import ConstantList, Request, RequestStatus, quiet
from .peer_vendors import MOONCAKE, MOONCAKE_STORE, NIXL, SHM, YUANRONG

VERSION = "0.30.0"
_CONNECTORS = "vllm_omni.distributed.omni_connectors.connectors"
CONNECTORS = {
    SHM: f"{_CONNECTORS}.shm_connector",
    MOONCAKE: f"{_CONNECTORS}.mooncake_transfer_engine_connector",
    NIXL: f"{_CONNECTORS}.nixl_connector",
    MOONCAKE_STORE: f"{_CONNECTORS}.mooncake_store_connector",
    YUANRONG: f"{_CONNECTORS}.yuanrong_connector",
}
"""Class and module; the class is called as in a deploy YAML."""
ADAPTER = "vllm_omni.distributed.omni_connectors.transfer_adapter.chunk_transfer_adapter"
SERIALIZATION = "vllm_omni.distributed.omni_connectors.utils.serialization"

PACKAGES = (
    "vllm_omni",
    "vllm_omni.config",
    "vllm_omni.distributed",
    "vllm_omni.distributed.omni_connectors",
    "vllm_omni.distributed.omni_connectors.connectors",
    "vllm_omni.distributed.omni_connectors.utils",
    "vllm_omni.entrypoints",
)
"""Packages whose ``__init__`` is left out."""

STAND_INS: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm.outputs": {name: type(name, (), {}) for name in ("CompletionOutput", "RequestOutput")},
    "vllm_omni.platforms": {"current_omni_platform": None},
}
ADAPTER_STAND_INS: dict[str, dict[str, Any]] = {
    "vllm.distributed": {},
    "vllm.distributed.parallel_state": {
        "get_tensor_model_parallel_rank": lambda: 0,
        "get_tensor_model_parallel_world_size": lambda: 1,
    },
    "vllm.logger": {"init_logger": quiet},
    "vllm.v1": {},
    "vllm.v1.metrics": {},
    "vllm.v1.metrics.stats": {"PrefillStats": type("PrefillStats", (), {})},
    "vllm.v1.request": {"Request": Request, "RequestStatus": RequestStatus},
    "vllm.v1.utils": {"ConstantList": ConstantList},
    "vllm_omni.metrics": {"OrchestratorAggregator": object},
}
"""What the chunk adapter's modules need besides."""
OPTIONAL_STAND_INS: dict[str, dict[str, Any]] = {
    # reads YAML for the engine; the connector never calls it
    "omegaconf": {name: type(name, (), {}) for name in ("DictConfig", "OmegaConf")},
}
"""Used where the real module is not installed."""


class PeerUnavailable(RuntimeError):
    """No usable wheel at the given place; the text says what was looked for."""


class Peer(NamedTuple):
    """A wheel, by where its ``vllm_omni`` package lies."""

    root: str
    """Folder of the package, possibly inside the wheel file."""
    version: str
    hashes: dict[str, str]
    """Of each file in the wheel, by its path there."""

    def title(self, connector: str) -> str:
        return f"{connector} of {self._told(connector, {*STAND_INS, *OPTIONAL_STAND_INS})}"

    def adapter_title(self, connector: str) -> str:
        stand_ins = {*STAND_INS, *OPTIONAL_STAND_INS, *ADAPTER_STAND_INS}
        return f"OmniChunkTransferAdapter over {connector} of {self._told(connector, stand_ins)}"

    def _told(self, connector: str, stand_ins: set[str]) -> str:
        if connector in peer_vendors.NAMED:
            stand_ins = stand_ins | {peer_vendors.NAMED[connector]}
        names = ", ".join(
            sorted(stand_ins - {"vllm", "vllm.distributed", "vllm.v1", "vllm.v1.metrics"})
        )
        return (
            f"vllm-omni {self.version}, its modules unmodified "
            f"(package __init__ files left out; stand-ins for: {names})"
        )


def find(place: str) -> Peer:
    """The wheel at ``place``: a ``.whl`` file, or a folder that holds one or holds it unpacked.

    Raises:
        PeerUnavailable: there is none, or it is of another version.
    """
    path = Path(place)
    if path.is_dir() and not (path / "vllm_omni").is_dir():
        wheels = sorted(path.glob(f"vllm_omni-{VERSION}-*.whl"))
        if not wheels:
            raise PeerUnavailable(f"{place} holds neither vllm_omni/ nor vllm_omni-{VERSION}-*.whl")
        path = wheels[0]
    record = f"vllm_omni-{VERSION}.dist-info/RECORD"
    try:
        if path.is_dir():
            text = (path / record).read_text()
        else:
            with zipfile.ZipFile(path) as wheel:
                text = wheel.read(record).decode()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise PeerUnavailable(f"{path} is no vllm-omni {VERSION}: {error}") from error
    hashes = {row[0]: row[1] for row in csv.reader(io.StringIO(text)) if len(row) > 1}
    return Peer(str(path / "vllm_omni"), VERSION, hashes)


def connector(peer: Peer, name: str = SHM) -> Any:
    """The connector class of that name, imported into this process.

    Raises:
        PeerUnavailable: a module of it differs from the published wheel or cannot be imported.
    """
    peer_vendors.before(name)
    # the connector imports the second at its first put; loaded here so that its hash is checked too
    module = _load(peer, CONNECTORS[name], SERIALIZATION)
    peer_vendors.after(name, module)
    return getattr(module, name)


def serializer(peer: Peer) -> Any:
    """The ``serialize`` and ``deserialize`` of its object format, imported into this process.

    Raises:
        PeerUnavailable: a module of it differs from the published wheel or cannot be imported.
    """
    return _load(peer, SERIALIZATION).OmniSerializer


def extra_of(name: str, role: Role, port: int, pool: int) -> dict[str, Any]:
    """The settings of one end of such a connector, on this host and without hardware of its own.

    Those of stores are their server's to tell.
    """
    if name == SHM:
        return {}
    if name == NIXL:
        # Its own limit of 10 ms is for callers that ask again; here none does.
        return {"role": role, "host": LOOPBACK, "metadata_query_timeout_ms": 5000} | (
            {"zmq_port": port} if role == "sender" else {}
        )
    return {
        "host": LOOPBACK,
        "zmq_port": port,
        "protocol": "tcp",
        "memory_pool_size": pool,
        "memory_pool_device": "cpu",
        "role": role,
        "from_stage": 0,
        "sender_host": LOOPBACK,
        "sender_zmq_port": port,
    }


def chunk_adapter(peer: Peer, over: str = SHM, stage: int = 0) -> Any:
    """The class of its chunk adapter over a connector of that name, for a process of that stage.

    Raises:
        PeerUnavailable: a module of it differs from the published wheel or cannot be imported.
    """
    for name, contents in ADAPTER_STAND_INS.items():
        _stand_in(name, contents)
    peer_vendors.before(over)
    module = CONNECTORS[over]
    adapter = _load(peer, ADAPTER, module, SERIALIZATION).OmniChunkTransferAdapter
    if over == MOONCAKE:  # the adapter asks its connector for it, and this one does not say
        getattr(sys.modules[module], over).stage_id = stage
    return adapter


def _load(peer: Peer, wanted: str, *besides: str) -> Any:
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(Path(peer.root, *name.split(".")[1:]))]
        sys.modules[name] = package
    for name, contents in OPTIONAL_STAND_INS.items():
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            _stand_in(name, contents)
    for name, contents in STAND_INS.items():
        _stand_in(name, contents)
    try:
        module = importlib.import_module(wanted)
        for name in besides:
            importlib.import_module(name)
    except ImportError as error:
        raise PeerUnavailable(f"{wanted} of vllm-omni {peer.version}: {error}") from error
    _verify(peer)
    return module


def _stand_in(name: str, contents: dict[str, Any]) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    module.__path__ = []  # a package, so that modules below it can be stood in for too
    sys.modules[name] = module


def _verify(peer: Peer) -> None:
    for name in sorted(name for name in sys.modules if name.startswith("vllm_omni.")):
        spec = sys.modules[name].__spec__
        if spec is None:  # a package or a stand-in made here
            continue
        file = str(spec.origin)
        inside = "vllm_omni/" + Path(file).relative_to(peer.root).as_posix()
        loader: Any = spec.loader  # a file's or a wheel's; both have get_data
        digest = hashlib.sha256(loader.get_data(file)).digest()
        found = "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if peer.hashes.get(inside) != found:
            raise PeerUnavailable(f"{file} is not the file of the published wheel")
