"""A stand-in for the peer's wheel: the same layout, a connector over files, a chunk adapter that polls it.

In: nothing. Out: a wheel.
Never: fetches the real one.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

CONNECTOR = """
import json, os, tempfile, torch
from ..utils.serialization import encode, decode
from vllm_omni.entrypoints.stage_utils import folder

class SharedMemoryConnector:
    def __init__(self, config):
        self.stage_id = config["stage_id"]

    def put(self, from_stage, to_stage, key, value):
        path = os.path.join(folder(), key)
        torch.save(value, path + ".part")
        os.rename(path + ".part", path)
        return encode(key) == key, os.path.getsize(path), {"path": path}

    def get(self, from_stage, to_stage, key, metadata=None):
        path = metadata["path"] if metadata else os.path.join(folder(), key)
        try:
            value = torch.load(path)
        except FileNotFoundError:
            return None
        size = os.path.getsize(path)
        os.unlink(path)
        return decode(value), size
"""

MOONCAKE = """
import os, torch
from .shm_connector import SharedMemoryConnector

class Buffer:
    def __init__(self, tensor):
        self.tensor = tensor.reshape(-1).view(torch.uint8)

    def release(self):
        self.tensor = None

class MooncakeTransferEngineConnector(SharedMemoryConnector):
    def __init__(self, config):
        assert config["protocol"] == "tcp" and config["role"] in ("sender", "receiver")
        assert config["zmq_port"] == config["sender_zmq_port"] > 0
        self.pool = torch.ones(64).pin_memory()

    def get(self, from_stage, to_stage, key, metadata=None):
        found = super().get(from_stage, to_stage, key, metadata)
        if found is not None and isinstance(found[0], torch.Tensor):
            return Buffer(found[0]), found[1]
        return found
"""

NIXL = """
from .shm_connector import SharedMemoryConnector

class NixlConnector(SharedMemoryConnector):
    def __init__(self, config):
        from vllm.distributed.nixl_utils import NixlWrapper, nixl_agent_config
        from nixl import nixl_thread_sync_t

        assert config["role"] == ("receiver" if config["stage_id"] else "sender")
        assert ("zmq_port" in config) == (config["stage_id"] == 0)
        mode = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        self.agent = NixlWrapper(str(id(self)), nixl_agent_config(num_threads=1, sync_mode=mode))

    def put(self, *args):
        done, nbytes, metadata = super().put(*args)
        return done, nbytes, {**metadata, "agent": self.agent.get_agent_metadata()}

    def get(self, from_stage, to_stage, key, metadata=None):
        assert isinstance(metadata["agent"], bytes)
        return super().get(from_stage, to_stage, key, metadata)
"""

STORE = """
from types import SimpleNamespace
from .shm_connector import SharedMemoryConnector

class {name}(SharedMemoryConnector):
    def __init__(self, config):
        super().__init__(config)
        assert {options} <= set(config)
        self.store = SimpleNamespace(remove=lambda key, force: self.removed.append(key))
        self.client = SimpleNamespace(delete=lambda keys: self.removed.extend(keys))
        self.removed = []

    def _make_key(self, key, from_stage, to_stage):
        return f"{{key}}@{{from_stage}}_{{to_stage}}"

    def put(self, from_stage, to_stage, key, value):
        done, nbytes, _ = super().put(from_stage, to_stage, key, value)
        return done, nbytes, None

    def get(self, from_stage, to_stage, key, metadata=None):
        import time
        assert metadata is None
        for _ in range(20):
            found = super().get(from_stage, to_stage, key)
            if found is not None:
                return found
            time.sleep(0.05)
"""

ADAPTER = """
import importlib, threading, time
from collections import deque
from types import SimpleNamespace
from vllm.v1.request import Request
from vllm.logger import init_logger
from ..connectors.shm_connector import SharedMemoryConnector

class OmniChunkTransferAdapter:
    def __init__(self, config):
        model = config.model_config
        self.stage = model.stage_id
        wanted = model.stage_connector_config
        self.connector = SharedMemoryConnector({"stage_id": self.stage})
        if wanted["name"] != "SharedMemoryConnector":
            from ..connectors.mooncake_transfer_engine_connector import (
                MooncakeTransferEngineConnector as Mooncake,
            )
            self.connector = Mooncake(wanted["extra"])
        assert self.connector.stage_id == self.stage
        path = model.custom_process_next_stage_input_func
        if path:
            module, _, name = path.rpartition(".")
            self.process = getattr(importlib.import_module(module), name)
        self.counts = {}
        self._pending_save_reqs = deque()
        self._registered_load_entries = {}
        self._finished_load_reqs = set()
        self.stopped = False
        threading.Thread(target=self.save if path else self.load, daemon=True).start()

    def save_async(self, multimodal_output, request):
        self._pending_save_reqs.append((multimodal_output, request.request_id, request.is_finished()))

    def load_async(self, request):
        self._registered_load_entries[request.request_id] = request

    def key(self, request_id):
        number = self.counts[request_id] = self.counts.get(request_id, -1) + 1
        return f"{request_id}_{number}"

    def save(self):
        while not self.stopped:
            while self._pending_save_reqs:
                output, request_id, finished = self._pending_save_reqs[0]
                nested = {"codes": {"audio": output["codes.audio"]}}
                made = self.process(self, nested, None, finished)
                payload = {"codes": vars(made.codes), "meta": vars(made.meta)}
                self.connector.put("0", "1", self.key(request_id), payload)
                self._pending_save_reqs.popleft()
            time.sleep(0.001)

    def load(self):
        while not self.stopped:
            for request_id, request in list(self._registered_load_entries.items()):
                number = self.counts.get(request_id, -1) + 1
                found = self.connector.get("0", "1", f"{request_id}_{number}")
                if found is None:
                    continue
                self.counts[request_id] = number
                request.additional_information = found[0]
                self._finished_load_reqs.add(request_id)
                del self._registered_load_entries[request_id]
            time.sleep(0.001)

    def shutdown(self):
        self.stopped = True
"""

FILES = {
    "vllm_omni/__init__.py": "raise ImportError('the engine is not here')",
    "vllm_omni/entrypoints/stage_utils.py": (
        "import os\nfrom vllm_omni.platforms import current_omni_platform\n"
        "def folder(): return os.environ['FAKE_PEER_FOLDER']\n"
    ),
    "vllm_omni/distributed/omni_connectors/connectors/shm_connector.py": CONNECTOR,
    "vllm_omni/distributed/omni_connectors/connectors/mooncake_transfer_engine_connector.py": (
        MOONCAKE
    ),
    "vllm_omni/distributed/omni_connectors/connectors/nixl_connector.py": NIXL,
    "vllm_omni/distributed/omni_connectors/connectors/mooncake_store_connector.py": STORE.format(
        name="MooncakeStoreConnector", options={"host", "master", "metadata_server", "localbuf"}
    ),
    "vllm_omni/distributed/omni_connectors/connectors/yuanrong_connector.py": STORE.format(
        name="YuanrongConnector", options={"host", "port"}
    ),
    "vllm_omni/data_entry_keys.py": (
        "from types import SimpleNamespace\n"
        "CodesStruct = MetaStruct = OmniPayloadStruct = SimpleNamespace\n"
    ),
    "vllm_omni/distributed/omni_connectors/transfer_adapter/__init__.py": "",
    "vllm_omni/distributed/omni_connectors/transfer_adapter/chunk_transfer_adapter.py": ADAPTER,
    "vllm_omni/distributed/omni_connectors/utils/serialization.py": (
        "from omegaconf import OmegaConf\nfrom vllm.outputs import RequestOutput\n"
        "def encode(value): return value\ndef decode(value): return value\n"
    ),
}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAKE_PEER_FOLDER", str(tmp_path))
    path = tmp_path / "vllm_omni-0.30.0-py3-none-any.whl"
    record = ""
    with zipfile.ZipFile(path, "w") as file:
        for name, text in FILES.items():
            digest = hashlib.sha256(text.encode()).digest()
            sum_ = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            record += f"{name},sha256={sum_},{len(text)}\n"
            file.writestr(name, text)
        file.writestr("vllm_omni-0.30.0.dist-info/RECORD", record)
    return path


@pytest.fixture
def clean_modules() -> Iterator[None]:
    """What a peer's import leaves in this process goes again."""
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in ("vllm", "vllm_omni", "omegaconf"):
            del sys.modules[name]
