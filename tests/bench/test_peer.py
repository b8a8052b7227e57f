"""Importing the peer's connector from its wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from omni_async.cli.bench.peer import PeerUnavailable, chunk_adapter, connector, find
from omni_async.cli.bench.peer_vendors import SHM
from omni_async.cli.bench.sides import stream_peer

pytestmark = pytest.mark.usefixtures("clean_modules")


@pytest.mark.parametrize("kind", ["wheel", "folder of the wheel", "unpacked"])
def test_the_connector_comes_out_of(kind: str, wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    place = wheel if kind == "wheel" else wheel.parent
    if kind == "unpacked":
        place = tmp_path / "unpacked"
        with zipfile.ZipFile(wheel) as file:
            file.extractall(place)
    peer = find(str(place))
    side = connector(peer)({"stage_id": 0})
    done, nbytes, metadata = side.put("0", "1", "k", {"a": 1})
    assert done
    assert nbytes > 0
    assert side.get("0", "1", "k", metadata)[0] == {"a": 1}
    assert side.get("0", "1", "k") is None
    assert "0.30.0" in peer.title(SHM)
    assert "unmodified" in peer.title(SHM)
    assert "vllm.outputs" in peer.title(SHM)


def test_the_chunk_adapter_comes_out_of_the_wheel(wheel: Path) -> None:
    pytest.importorskip("torch")
    peer = find(str(wheel))
    job = {"role": "producer", "connector": SHM, "port": 0}
    settings = stream_peer.settings(job, 2)
    settings.model_config.custom_process_next_stage_input_func = None
    adapter = chunk_adapter(peer)(settings)
    adapter.shutdown()
    assert adapter.stage == 0
    assert "OmniChunkTransferAdapter" in peer.adapter_title(SHM)
    assert "vllm.v1.request" in peer.adapter_title(SHM)
    assert "vllm.v1.request" not in peer.title(SHM)


def test_a_changed_file_is_refused(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    place = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(place)
    changed = place / "vllm_omni" / "distributed/omni_connectors/utils/serialization.py"
    changed.write_text(changed.read_text() + "\n")
    with pytest.raises(PeerUnavailable, match=r"serialization\.py is not the file"):
        connector(find(str(place)))


def test_a_wheel_without_the_connector_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vllm_omni-0.30.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("vllm_omni-0.30.0.dist-info/RECORD", "")
    with pytest.raises(PeerUnavailable, match="shm_connector"):
        connector(find(str(path)))


def test_other_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="holds neither"):
        find(str(tmp_path))
    other = tmp_path / "vllm_omni-0.29.0-py3-none-any.whl"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("vllm_omni-0.29.0.dist-info/RECORD", "")
    for place in (other, tmp_path / "missing.whl"):
        with pytest.raises(PeerUnavailable, match=r"no vllm-omni 0\.30\.0"):
            find(str(place))
