"""What the peer's connectors need where the vendors' packages have moved on since, or there is no CUDA.

In: a connector's name, its module. Out: names as the peer expects them, each doing what the peer meant by it.
Never: changes what the peer does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from typing import Any

from ...backends.nixl._native import load as load_nixl

SHM = "SharedMemoryConnector"
MOONCAKE = "MooncakeTransferEngineConnector"
MOONCAKE_STORE = "MooncakeStoreConnector"
YUANRONG = "YuanrongConnector"
NIXL = "NixlConnector"

NAMED = {
    MOONCAKE: "Tensor.pin_memory where there is no CUDA",
    MOONCAKE_STORE: "ReplicateConfig.with_soft_pin where Mooncake calls it otherwise",
    NIXL: "vllm.distributed.nixl_utils",
    YUANRONG: "datasystem.kv_client where it is called yr.datasystem.kv_client",
}
"""What is stood in for, for the first line of a report."""


def before(connector: str) -> None:
    """What has to be there when the connector's module is imported."""
    if connector == MOONCAKE:
        _pins_where_it_can()
    elif connector == NIXL:
        _names_the_agent()
    elif connector == YUANRONG and importlib.util.find_spec("datasystem") is None:
        # The package had that name before version 0.8.
        package = types.ModuleType("datasystem")
        package.__path__ = []
        sys.modules["datasystem"] = package
        sys.modules["datasystem.kv_client"] = importlib.import_module("yr.datasystem.kv_client")


def after(connector: str, module: types.ModuleType) -> None:
    """What has to be there when the connector is made."""
    config = getattr(module, "ReplicateConfig", None)
    if connector == MOONCAKE_STORE and config and not hasattr(config, "with_soft_pin"):
        module.__dict__["ReplicateConfig"] = _soft_pinned(config)


def _pins_where_it_can() -> None:
    """PyTorch without CUDA pins nothing; the pool is then ordinary memory, as ours is."""
    import torch

    try:
        torch.empty(1).pin_memory()
    except RuntimeError:
        torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]


def _names_the_agent() -> None:
    """As vLLM's own module does, the environment variable included.

    The package ``nixl`` only chooses one of its variants; where it was left out, the variant is called so.
    """
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    variant = importlib.import_module(load_nixl().__name__.partition(".")[0])
    if importlib.util.find_spec("nixl") is None:
        sys.modules["nixl"] = variant
    module = types.ModuleType("vllm.distributed.nixl_utils")
    module.__dict__.update(
        NixlWrapper=variant.nixl_agent, nixl_agent_config=variant.nixl_agent_config
    )
    sys.modules.setdefault("vllm.distributed", types.ModuleType("vllm.distributed"))
    sys.modules[module.__name__] = module


def _soft_pinned(config: Any) -> type:
    """Mooncake's settings of a copy with the word that it had before version 0.3.13."""
    action = importlib.import_module("mooncake.store").SoftPinAction.ENABLE

    class ReplicateConfig(config):  # type: ignore[misc]
        @property
        def with_soft_pin(self) -> bool:
            return bool(self.soft_pin_action == action)

        @with_soft_pin.setter
        def with_soft_pin(self, wanted: bool) -> None:
            if wanted:
                self.soft_pin_action = action

    return ReplicateConfig
