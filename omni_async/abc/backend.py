"""Backend: what one vendor's folder offers to the hall.

In: validated options. Out: the parts a transport is wired from.
Never: wires them itself, imports the vendor before it is asked for a part.
"""

from __future__ import annotations

import abc

import pydantic

from ..model import Capabilities, Role
from .channel import Channels
from .engine import Engine
from .memory import MemorySource


class Options(pydantic.BaseModel):
    """Base of every connector's ``extra``: unknown keys are refused, values are not coerced."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)

    memory_pool_size: int | None = pydantic.Field(
        default=None,
        gt=0,
        description="Limit of the pool in bytes; by default a quarter of what this process may use, at most 4 GiB.",
    )
    buffer_ttl_seconds: float = pydantic.Field(
        default=300.0, gt=0, description="Seconds an unclaimed payload is kept."
    )
    inline_limit: int = pydantic.Field(
        default=8192,
        ge=0,
        le=1 << 20,
        description="Largest payload in bytes that rides inside its offer.",
    )
    peer_timeout: float = pydantic.Field(
        default=30.0, gt=0, description="Seconds of silence after which a peer counts as dead."
    )


class Backend(abc.ABC):
    """What every backend says of itself."""

    name: str
    """Connector name in a deploy YAML, such as ``SharedMemoryConnector``."""
    alias: str
    options: type[Options]

    @abc.abstractmethod
    def capabilities(self, options: Options) -> Capabilities:
        """Facts that hold for these options."""


class DirectBackend(Backend):
    """A backend with an engine between two processes and a channel for words."""

    @abc.abstractmethod
    def engine(self, options: Options, role: Role) -> Engine:
        """The engine of one transport.

        Raises:
            BackendUnavailable: a package, library or device is missing; says how to get it.
        """

    @abc.abstractmethod
    def memory(self, options: Options, role: Role) -> MemorySource:
        """Where the pool's segments come from."""

    @abc.abstractmethod
    def channels(self, options: Options) -> Channels:
        """How words travel."""
