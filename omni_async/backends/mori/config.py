"""Options of ``MoriTransferEngineConnector``.

In: ``extra`` of a connector. Out: validated values with defaults.
Never: touches the system, imports the vendor.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator

from ...abc.hosts import checked_host
from ...abc.options import (
    GIB,
    AddressedOptions,
    DeviceName,
    checked_other_name,
    detected,
    option,
    under_both_names,
)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


class MoriTransferEngineOptions(AddressedOptions):
    """The sender writes into the receiver's registered pool, on AMD GPUs."""

    host: Annotated[str, AfterValidator(checked_host), AfterValidator(detected)] = option(
        "127.0.0.1",
        "Where this end's sender listens. `auto` is the address by which this host reaches others.",
        said="a host name or an address",
    )
    backend_type: Annotated[
        Literal["rdma", "xgmi"],
        BeforeValidator(_lower),
        pydantic.WithJsonSchema({"enum": ["rdma", "xgmi", "RDMA", "XGMI"]}),
    ] = option(
        "rdma",
        "How bytes travel: over the network (`rdma`), or between the GPUs of one host (`xgmi`).",
        edge_wide=True,
    )
    device_name: DeviceName = option(
        "",
        "RDMA devices to use; empty for those that the variable `MORI_RDMA_DEVICES` names, else "
        "for all. Not read with `xgmi`.",
    )
    memory_pool_size: int | None = option(
        GIB, "Size of the pool, which is registered as it grows.", unit="bytes", gt=0
    )
    memory_pool_device: str = option(
        "cpu",
        "Where the pool lives; `xgmi` reaches memory of a GPU only.",
        said="'cpu' or 'cuda', with a number as in 'cuda:1' where there are several",
        pattern="^(cpu|cuda(:[0-9]+)?)$",
        validate_default=True,
    )
    xgmi_num_streams: int = option(64, "Streams that carry transfers with `xgmi`.", ge=1)
    xgmi_num_events: int = option(64, "Events that watch transfers with `xgmi`.", ge=1)
    qp_per_transfer: int = option(
        1, "Queue pairs that one transfer is spread over with `rdma`.", ge=1
    )
    post_batch_size: int = option(
        -1, "Work requests posted at a time with `rdma`; -1 leaves it to the engine.", ge=-1
    )
    num_worker_threads: int = option(
        1, "The engine's threads with `rdma`; -1 leaves it to the engine.", unit="threads", ge=-1
    )
    num_workers: int | None = option(
        None, "Another name for `num_worker_threads`.", unit="threads", ge=-1
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _one_number(cls, values: Any) -> Any:
        return under_both_names(values, "num_worker_threads", "num_workers")

    @pydantic.field_validator("num_workers")
    @classmethod
    def _the_same(cls, value: int | None, info: pydantic.ValidationInfo) -> int | None:
        return checked_other_name(value, info, "num_worker_threads")

    @pydantic.field_validator("memory_pool_device")
    @classmethod
    def _reachable(cls, value: str, info: pydantic.ValidationInfo) -> str:
        if value == "cpu" and info.data.get("backend_type") == "xgmi":
            raise ValueError(
                "has to be 'cuda' with 'backend_type: xgmi', which reaches memory of a GPU only"
            )
        return value

    @property
    def cross_host(self) -> bool:
        return self.backend_type != "xgmi"
