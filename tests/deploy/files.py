"""Deploy files that tests begin with, and what loading them says."""

from __future__ import annotations

from typing import Any

import pytest

from omni_async import ConfigError
from omni_async.deploy import load_deploy

RIGHT = """\
async_chunk: false
session_mode: turn
connectors:
  fast: {name: SharedMemoryConnector, extra: {memory_pool_size: 1048576, codec_chunk_frames: 25}}
stages:
  - stage_id: 0
    devices: "0"
    gpu_memory_utilization: 0.9
    output_connectors: {to_stage_1: fast}
  - stage_id: 1
    async_chunk: true
    input_connectors: {from_stage_0: fast}
  - stage_id: 2
edges:
  - {from: 1, to: 2, window_size: 4, max_inflight: 2}
  - {from: 0, to: 1}
platforms: {cuda: {stages: []}}
runtime: {anything: 1}
"""


def three_stages(**first: Any) -> dict[str, Any]:
    return {"stages": [{"stage_id": 0, **first}, {"stage_id": 1}, {"stage_id": 2}]}


def mistakes(source: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load_deploy(source)
    assert caught.value.mistakes
    assert caught.value.path == (caught.value.mistakes[0].path or None)
    for mistake in caught.value.mistakes:
        assert str(mistake) in str(caught.value)
    return {mistake.path: mistake.text for mistake in caught.value.mistakes}
