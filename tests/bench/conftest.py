"""A stand-in for the peer's wheel: the same layout, a connector that keeps pickles out and files in.

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

FILES = {
    "vllm_omni/__init__.py": "raise ImportError('the engine is not here')",
    "vllm_omni/entrypoints/stage_utils.py": (
        "import os\nfrom vllm_omni.platforms import current_omni_platform\n"
        "def folder(): return os.environ['FAKE_PEER_FOLDER']\n"
    ),
    "vllm_omni/distributed/omni_connectors/connectors/shm_connector.py": CONNECTOR,
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
