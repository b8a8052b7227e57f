"""Options of ``MooncakeStoreConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system, imports the vendor.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from ...abc.options import DeviceName, StoreOptions, detected, option
from ..mooncake.config import Protocol


class MooncakeStoreOptions(StoreOptions):
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
        said="'P2PHANDSHAKE', or an address such as 'http://10.0.0.1:8080/metadata' or 'etcd://10.0.0.1:2379'",
        # Of any other kind of service the vendor's client says so by ending the process.
        pattern=r"^(P2PHANDSHAKE|https?://\S+|etcd://\S+|[^\s/]+:[0-9]+)$",
    )
    master: str = option(
        "127.0.0.1:50051",
        "Address of the store's master, which knows every key; or of the service that elects it.",
        edge_wide=True,
        said="an address such as '10.0.0.1:50051' or 'etcd://10.0.0.1:2379'",
        pattern=r"^([^\s/]+:[0-9]+|[a-z0-9]+://\S+)$",
    )
    segment: int = option(
        512 << 20,
        "Memory that this client lends to the store; with 0 it keeps nothing itself. A payload lies in one "
        "piece in one segment, so the largest one is the largest payload.",
        unit="bytes",
        ge=0,
    )
    localbuf: int = option(
        64 << 20,
        "This client's buffer for payloads that lie on a disk of the store; a larger one does not fit through "
        "it. All others go straight to and from the pool.",
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

    @property
    def beside_pool(self) -> int:
        return self.segment + self.localbuf
