"""Options of ``NixlConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system, imports the vendor.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator

from ...abc.options import AddressedOptions, checked_other_name, option, under_both_names


def _several(value: Any) -> Any:
    """One name stands for a list of one."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


_Name = Annotated[str, pydantic.Field(min_length=1)]


class NixlOptions(AddressedOptions):
    """The sender writes into the receiver's registered memory."""

    backends: Annotated[
        tuple[_Name, ...],
        BeforeValidator(_several),
        pydantic.WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "items": {"type": "string"}, "minItems": 1},
                ]
            }
        ),
    ] = option(
        ("UCX",),
        "NIXL's own backends, by name. One name may stand without a list.",
        edge_wide=True,
        said="a name such as 'UCX', or a list of names",
        min_length=1,
    )
    num_threads: int = option(
        0,
        "Threads of the agent's own for a transfer of many pieces. None are needed, and each takes sockets.",
        unit="threads",
        ge=0,
    )
    agent_name: str | None = option(
        None,
        "How the agent's name begins, as NIXL's log has it. What follows is nobody else's.",
        min_length=1,
    )
    receive_device: str | None = option(
        None,
        "Where the pool lives, and received tensors land: the host, or a device.",
        said="a device of PyTorch such as 'cpu' or 'cuda:0'",
        pattern="^[a-z]+(:[0-9]+)?$",
    )
    memory_type: Literal["DRAM", "VRAM", "cpu", "cuda"] | None = option(
        None,
        "Kind of memory that is registered; `VRAM` and `cuda` mean a pool on the first device, unless "
        "`receive_device` names one.",
    )
    inline_limit: int = option(
        256 << 10,
        "Largest payload that rides inside its offer. Beyond it the offer is answered first, and then the "
        "agent writes.",
        unit="bytes",
        ge=0,
        le=1 << 20,
    )
    buffer_ttl_seconds: float = option(
        3600.0,
        "How long an unclaimed payload is kept; with 0 or less until it is fetched or cleaned up.",
        unit="seconds",
    )
    lease_seconds: float | None = option(
        None, "Another name for `buffer_ttl_seconds`.", unit="seconds"
    )
    transfer_timeout_s: float = option(
        300.0, "How long one transfer may take.", unit="seconds", gt=0
    )
    poll_interval_s: float = option(
        0.001, "How often a transfer in flight is looked at.", unit="seconds", gt=0
    )
    handshake_timeout_ms: int = option(
        5000, "How long a sender may take to answer.", unit="milliseconds", gt=0
    )
    metadata_query_timeout_ms: int | None = option(
        None,
        "How long one question for a payload may take; by default 10, or `handshake_timeout_ms` "
        "where that is less.",
        unit="milliseconds",
        gt=0,
    )
    handshake_max_wait_s: float = option(
        60.0, "Taken because files have it; nothing reads it.", unit="seconds", gt=0
    )
    handshake_retry_s: float = option(
        0.05, "Taken because files have it; nothing reads it.", unit="seconds", gt=0
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _one_lease(cls, values: Any) -> Any:
        return under_both_names(values, "buffer_ttl_seconds", "lease_seconds")

    @pydantic.field_validator("lease_seconds")
    @classmethod
    def _the_same(cls, value: float | None, info: pydantic.ValidationInfo) -> float | None:
        return checked_other_name(value, info, "buffer_ttl_seconds")
