"""The connector on the double by ``xgmi``, with a pool on the host that the double takes for a GPU's.

In: nothing. Out: a backend by the name ``mori-xgmi-on-double``.
Never: needs a GPU, or shows anything of one.
"""

from __future__ import annotations

import msgspec

from omni_async.abc import Engine, Options
from omni_async.backends.mori import MoriTransferEngineOptions
from omni_async.backends.mori.engine import MoriEngine
from omni_async.model import Capabilities, Role
from omni_async.testing.doubles.mori import MoriOnDouble

OPTIONS = {"backend_type": "xgmi", "memory_pool_device": "cuda"}


class XgmiOnDouble(MoriOnDouble):
    name = "MoriXgmiOnDouble"
    alias = "mori-xgmi-on-double"

    def device_of(self, options: MoriTransferEngineOptions) -> str:
        return "cpu"

    def capabilities(self, options: Options) -> Capabilities:
        return msgspec.structs.replace(super().capabilities(options), device_memory=False)

    def engine(self, options: Options, role: Role) -> Engine:
        made = super().engine(options, role)
        assert isinstance(made, MoriEngine)
        made._number = 0
        return made
