"""Options of ``YuanrongTransferEngineConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system, imports the vendor.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator

from ...abc.options import GIB, PORT_SAID, AddressedOptions, Port, option


def _left_open(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ("", "auto"))


def _auto_port(value: Any) -> Any:
    return "auto" if _left_open(value) else value


def _device(value: Any) -> Any:
    if _left_open(value):
        return "auto"
    return value.strip().lower() if isinstance(value, str) else value


def _npu(value: Any) -> Any:
    if _left_open(value):
        return "npu"
    return value.strip().lower() if isinstance(value, str) else value


class YuanrongTransferEngineOptions(AddressedOptions):
    """The receiver reads from the sender's registered pool, on Ascend NPUs."""

    rpc_port: Annotated[
        Port | Literal["auto"],
        BeforeValidator(_auto_port),
        pydantic.WithJsonSchema({"type": ["integer", "string", "null"]}),
    ] = option(
        "auto",
        "Port of this end's transfer engine; `auto` takes a free one.",
        said=f"'auto' or {PORT_SAID}",
    )
    protocol: Literal["ascend", "hccl", "npu"] = option(
        "ascend", "How bytes travel: over the network of the NPUs.", edge_wide=True
    )
    device_name: Annotated[
        str,
        BeforeValidator(_device),
        pydantic.WithJsonSchema({"type": ["string", "null"]}),
    ] = option(
        "auto",
        "The NPU to use, such as `npu:0`; with `auto`, or empty, that of the process's local rank.",
        said="'auto', or an NPU such as 'npu:0'",
        pattern="^(auto|npu:[0-9]{1,9})$",
    )
    memory_pool_size: int | None = option(
        GIB, "Limit of the pool; memory of the NPU is taken as it is needed.", unit="bytes", gt=0
    )
    memory_pool_device: Annotated[
        str,
        BeforeValidator(_npu),
        pydantic.WithJsonSchema({"type": ["string", "null"]}),
    ] = option(
        "npu",
        "Where the pool lives; it has to be memory of an NPU.",
        said="'npu', with a number as in 'npu:1' where there are several",
        pattern="^npu(:[0-9]{1,9})?$",
    )
