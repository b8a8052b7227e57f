"""The deploy files that people copy mean what their comments say."""

from __future__ import annotations

from pathlib import Path

from omni_async import registry
from omni_async.backends.mori import MoriTransferEngineOptions
from omni_async.backends.yuanrong_te import YuanrongTransferEngineOptions
from omni_async.deploy import Deploy, load_deploy

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def loaded(name: str) -> Deploy:
    return load_deploy(DEPLOY / name)


def edges(deploy: Deploy) -> dict[str, str]:
    return {str(wire.name): wire.sender.name for wire in deploy.wires}


def test_two_stages() -> None:
    deploy = loaded("two_stages.yaml")
    assert edges(deploy) == {"0->1": "SharedMemoryConnector"}
    [wire] = deploy.wires
    assert wire.receiver == wire.sender
    assert wire.sender.options["memory_pool_size"] == 256 << 20


def test_thinker_talker_code2wav() -> None:
    deploy = loaded("thinker_talker_code2wav.yaml")
    assert edges(deploy) == dict.fromkeys(("0->1", "1->2"), "SharedMemoryConnector")
    for wire in deploy.wires:
        assert wire.sender.options["memory_pool_size"] == 64 << 20
        assert wire.sender.knobs == {"initial_codec_chunk_frames": 4, "codec_chunk_frames": 25}
    assert [plan.others["devices"] for plan in deploy.stages.values()] == ["0", "1", "1"]


def test_an_overlay_changes_what_it_names() -> None:
    base, deploy = loaded("thinker_talker_code2wav.yaml"), loaded("overlay.yaml")
    assert edges(deploy) == edges(base)
    for wire, before in zip(deploy.wires, base.wires, strict=True):
        assert wire.sender.options == before.sender.options
        assert wire.sender.knobs == {"initial_codec_chunk_frames": 4, "codec_chunk_frames": 50}
    assert [plan.others["devices"] for plan in deploy.stages.values()] == ["0", "1", "2"]


def test_fan_in() -> None:
    deploy = loaded("fan_in.yaml")
    assert sorted(edges(deploy)) == ["0->2", "1->2", "2->3", "2->4"]
    assert [wire.name.from_stage for wire in deploy.stage(2).inputs] == ["0", "1"]
    assert [wire.name.to_stage for wire in deploy.stage(2).outputs] == ["3", "4"]
    [images] = deploy.stage(0).outputs
    assert images.receiver.options["memory_pool_size"] == 1 << 30
    assert all(not wire.sender.options for wire in deploy.wires if wire != images)


def test_mixed() -> None:
    deploy = loaded("mixed.yaml")
    assert edges(deploy) == {"0->1": "MemoryConnector", "1->2": "SharedMemoryConnector"}


def test_gpus_of_one_node() -> None:
    deploy = loaded("mi300x_intranode.yaml")
    assert edges(deploy) == dict.fromkeys(("0->1", "1->2"), "MoriTransferEngineConnector")
    for wire in deploy.wires:
        options = registry.options_for("mori").model_validate(wire.sender.options)
        assert isinstance(options, MoriTransferEngineOptions)
        assert (options.backend_type, options.memory_pool_device) == ("xgmi", "cuda")
        assert wire.sender.knobs == {"codec_chunk_frames": 25, "codec_left_context_frames": 25}
    assert [plan.others["devices"] for plan in deploy.stages.values()] == ["0", "1", "2"]


def test_npus_of_two_hosts() -> None:
    deploy = loaded("ascend_two_hosts.yaml")
    assert edges(deploy) == {"0->1": "YuanrongTransferEngineConnector"}
    [wire] = deploy.wires
    options = registry.options_for("yuanrong-te").model_validate(wire.sender.options)
    assert isinstance(options, YuanrongTransferEngineOptions)
    assert (options.protocol, options.rpc_port, options.device_name) == ("ascend", "auto", "auto")
    assert [plan.host for plan in deploy.stages.values()] == ["node-a", "node-b"]


def test_twelve_stages() -> None:
    deploy = loaded("twelve_stages.yaml")
    assert len(deploy.stages) == 12
    assert {plan.host for plan in deploy.stages.values()} == {"node-a", "node-b"}
    assert len(set(edges(deploy).values())) == 4


def test_every_deploy_file_is_tested() -> None:
    here = Path(__file__).read_text()
    assert [path.name for path in DEPLOY.iterdir() if f'"{path.name}"' not in here] == []
