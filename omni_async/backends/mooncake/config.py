"""Options of ``MooncakeTransferEngineConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system, imports the vendor.
"""

from __future__ import annotations

from typing import Literal

from ...abc.options import (
    AddressedOptions,
    DeviceName,
    option,
)

Protocol = Literal["rdma", "tcp", "ascend", "barex", "cxl", "efa", "hip", "nvlink"]


class MooncakeTransferEngineOptions(AddressedOptions):
    """The sender writes into the receiver's registered pool."""

    protocol: Protocol = option(
        "rdma",
        "How bytes travel. `tcp` works everywhere, the others need their hardware.",
        edge_wide=True,
    )
    device_name: DeviceName = option(
        "",
        "RDMA devices to use, such as `mlx5_0,mlx5_1`; empty for those that the variable "
        "`RDMA_DEVICE_NAME` names, else for all. Nothing is read here with `tcp`.",
    )
    memory_pool_size: int | None = option(
        None,
        "Limit of the pool; by default 4 GiB, but at most a quarter of what this process may use, and 2 GiB "
        "on a device. Memory is registered as it is needed.",
        unit="bytes",
        gt=0,
    )
    inline_limit: int = option(
        256 << 10,
        "Largest payload that rides inside its offer. Beyond it the offer is answered first, and then the "
        "engine writes.",
        unit="bytes",
        ge=0,
        le=1 << 20,
    )
    memory_pool_device: str = option(
        "cpu",
        "Where the pool lives: pinned memory of the host (`cpu`) or memory of a device.",
        said="'cpu', 'cuda' or 'npu', with a number as in 'cuda:1' where there are several",
        pattern="^(cpu|(cuda|npu)(:[0-9]+)?)$",
    )
