"""Options of ``MooncakeTransferEngineConnector`` and ``MooncakeStoreConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system, imports the vendor.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from ...abc.options import (
    AddressedOptions,
    DeviceName,
    Options,
    detected,
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


class MooncakeStoreOptions(Options):
    """A store keeps the bytes under the key."""

    host: Annotated[str, AfterValidator(detected)] = option(
        "127.0.0.1",
        "Address under which other clients of the store reach this one. `auto` is the address by "
        "which this host reaches others; a port behind it is the client's own.",
        said="a host name or an address",
        pattern=r"^[^\s/]*$",
    )
    metadata_server: str = option(
        "http://127.0.0.1:8080/metadata",
        "Where clients of the store find each other: the address of the metadata service, or "
        "`P2PHANDSHAKE` for none.",
        edge_wide=True,
        said="an address such as 'http://10.0.0.1:8080/metadata'",
        pattern=r"^\S+$",
    )
    master: str = option(
        "127.0.0.1:50051",
        "Address of the store's master, which knows every key.",
        edge_wide=True,
        said="an address such as '10.0.0.1:50051'",
        pattern=r"^\S+$",
    )
    segment: int = option(
        512 << 20,
        "Memory that this client lends to the store; with 0 it keeps nothing itself.",
        unit="bytes",
        ge=0,
    )
    localbuf: int = option(
        64 << 20,
        "This client's buffer for payloads on their way; a larger payload does not fit through it.",
        unit="bytes",
        gt=0,
    )
    proto: Protocol = option(
        "tcp",
        "How bytes travel between clients of the store.",
        edge_wide=True,
    )
    rdma: DeviceName = option(
        "", "RDMA devices to use, such as `mlx5_0,mlx5_1`; read with another `proto` than `tcp`."
    )
