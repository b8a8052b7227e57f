"""Whether an edge speaks the wire of vLLM-Omni, and what that changes for its transport.

In: options. Out: the encoder of its payloads, refusals of what that wire has no word for.
Never: moves anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ...abc import AddressedOptions, Engine, Options
from ...codec import Encoded, encode
from ...errors import ConfigError, UsageError
from ...interop.vllm_omni import objects
from ...model import Capabilities, TransferKey
from ..receiving import Receiving
from ..wiring import Wiring
from .receiving import ForeignReceiving


def speaks_vllm_omni(options: Options) -> bool:
    """Whether the other end of the edge may be a stage of vLLM-Omni."""
    return isinstance(options, AddressedOptions) and options.peer == "vllm-omni"


def capabilities_of(facts: Capabilities, options: Options) -> Capabilities:
    """What holds for an edge of a backend: that wire wakes nobody."""
    if not speaks_vllm_omni(options):
        return facts
    return msgspec.structs.replace(facts, notifies=False, credit=False)


def encoder_of(options: Options) -> Callable[[Any], Encoded]:
    """What encodes the values of an edge."""
    return objects.encode if speaks_vllm_omni(options) else encode


def receiving_of(wiring: Wiring) -> Receiving | ForeignReceiving:
    """The receiving half of an edge."""
    return ForeignReceiving(wiring) if speaks_vllm_omni(wiring.options) else Receiving(wiring)


def serves_strangers(engine: Engine) -> bool:
    """Whether receivers of vLLM-Omni can be written to: they have to find each other's engine, and what
    they ask for may have to be encoded anew, which needs a pool on the host.
    """
    return bool(engine.session) and engine.device == "cpu"


def checked_engine(engine: Engine, backend: str, options: Options) -> Engine:
    """The engine, if it can speak with whom the edge is for.

    Raises:
        ConfigError: it cannot; it is closed.
    """
    if not speaks_vllm_omni(options) or serves_strangers(engine):
        return engine
    engine.close()
    if engine.session:
        raise ConfigError(
            f"{backend}: 'peer: vllm-omni' needs a pool on the host; remove memory_pool_device",
            path="extra.memory_pool_device",
        )
    raise ConfigError(
        f"{backend}: 'peer: vllm-omni' is spoken by MooncakeTransferEngineConnector only",
        path="extra.peer",
    )


def no_streams(where: TransferKey) -> UsageError:
    """Refuses a stream on such an edge."""
    return UsageError(
        f"stream {where.key!r} on {where.edge}: the wire of vLLM-Omni has no streams; put each chunk "
        "under a key of its own, such as 'request_0_chunk', as its own chunk adapter does"
    )
