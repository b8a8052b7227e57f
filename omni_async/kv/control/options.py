"""Options of an instance: what vLLM calls ``kv_transfer_config``, typed.

In: that object, or its JSON. Out: role and options, or one error with every mistake.
Never: reads an option from the environment, starts anything.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import AfterValidator, BeforeValidator

from ... import registry
from ...abc.hosts import checked_host, is_host
from ...abc.options import PORT_SAID, Port, detected, option
from ...abc.wrong_options import nearest, validate
from ...errors import ConfigError
from ...observe.log import get_logger
from .registered import Mode, Role

EXTRA = "kv_connector_extra_config"
_ROLES: dict[str, tuple[Role, ...]] = {
    "kv_producer": ("P",),
    "kv_consumer": ("D",),
    "kv_both": ("P", "D"),
}
_OWN = ("kv_connector", "kv_role", EXTRA)
CONNECTORS = ("MoRIIOConnector", "OmniAsyncConnector")
_FOLLOWS = ("host", "zmq_port", "sender_host", "sender_zmq_port", "port_scheme", "peer")
_VARIABLES = "VLLM_MORIIO_"
_OLDER = {
    "VLLM_MORIIO_CONNECTOR_READ_MODE": "read_mode",
    "VLLM_MORIIO_QP_PER_TRANSFER": "qp_per_transfer",
    "VLLM_MORIIO_POST_BATCH_SIZE": "post_batch_size",
    "VLLM_MORIIO_NUM_WORKERS": "num_workers",
    "VLLM_MORIIO_TRANSFER_TIMEOUT_S": "transfer_timeout",
    "VLLM_MORIIO_DEFERRED_TIMEOUT_S": "defer_timeout",
}
"""Variables of older versions, and of branches → options."""

_log = get_logger("omni_async.kv")


def _checked(value: str | None) -> str | None:
    return None if value is None else checked_host(value)


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _hosts(value: tuple[str, ...] | None) -> tuple[str, ...] | None:
    for host in value or ():
        if "/" in host:
            ipaddress.ip_network(host)  # may refuse it
        elif not is_host(host):
            raise ValueError(f"{host!r} is no name, address or network")
    return value


def _backend(value: str) -> str:
    """A way of Mori's, or any connector that is known here."""
    if value.lower() in ("rdma", "xgmi"):
        return value.lower()
    try:
        return registry.canonical(value)
    except ConfigError as error:
        raise ValueError(str(error)) from None


class KVOptions(pydantic.BaseModel):
    """What ``kv_connector_extra_config`` may hold. Numbers may be written as text."""

    model_config = pydantic.ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False
    )

    proxy_ip: Annotated[str, AfterValidator(checked_host)] = option(
        "",
        "Host of the proxy to register at; empty for none. vllm-router takes beats over IPv4 only.",
        said="a host name or an address",
    )
    proxy_ping_port: Port = option(36367, "Where the proxy takes beats.", said=PORT_SAID)
    http_port: Port | None = option(
        None,
        "Where this instance serves its HTTP API, which the proxy is told.",
        said=PORT_SAID,
        validate_default=True,
    )
    handshake_port: Port = option(
        6301,
        "Base of the ports on which ranks answer the handshake: each adds dp_rank * tp_size + tp_rank.",
        said=PORT_SAID,
    )
    notify_port: Port = option(
        61005, "Base of the ports on which ranks are told things, likewise.", said=PORT_SAID
    )
    host_ip: Annotated[str, AfterValidator(checked_host), AfterValidator(detected)] = option(
        "auto",
        "The address that peers and the proxy are told. `auto` is the one by which this host reaches "
        "others.",
        said="a host name or an address",
    )
    bind_ip: Annotated[str | None, AfterValidator(_checked)] = option(
        None,
        "Where to listen, where that is not `host_ip`: behind an address that is translated.",
        said="a host name or an address",
    )
    read_mode: bool = option(
        False,
        "Whether decode reads all blocks at once when prefill has ended, instead of prefill writing each "
        "layer. All instances of a proxy agree in it.",
    )
    backend: Annotated[str, AfterValidator(_backend)] = option(
        "rdma",
        "What moves the bytes: a connector such as `mooncake`, `nixl` or `shm`; `rdma` and `xgmi` are "
        "Mori's ways.",
        said="the name of a connector, or 'rdma' or 'xgmi'",
    )
    backend_options: dict[str, Any] = option(
        {}, "Options of that connector.", said="an object of the connector's options"
    )
    trusted_remote_hosts: Annotated[
        tuple[str, ...] | None,
        BeforeValidator(_listed),
        AfterValidator(_hosts),
    ] = option(
        None,
        "Hosts that requests may name as their other instance: names, addresses, or networks such as "
        "`10.0.0.0/8`. Without it any, and who can send requests can make this instance connect anywhere.",
        said="a list of host names, addresses or networks",
    )
    transfer_timeout: float = option(
        30.0,
        "In what time something of a transfer has to move, once it has begun.",
        unit="seconds",
        gt=0,
    )
    defer_timeout: float = option(
        60.0,
        "How long one side waits for the other: prefill for a decode that does not ask, decode for a prefill "
        "that does not begin.",
        unit="seconds",
        gt=0,
    )
    handshake_timeout: float = option(
        10.0, "How long a peer may take to answer the handshake.", unit="seconds", gt=0
    )
    ping_interval: float = option(
        1.0, "Time between two beats; vllm-router forgets after 4 to 5.", unit="seconds", gt=0, le=3
    )
    qp_per_transfer: int = option(1, "Queue pairs of a transfer, with Mori over RDMA.", ge=1)
    post_batch_size: int = option(
        -1,
        "Work requests posted at a time, with Mori over RDMA; -1 leaves it to the engine.",
        ge=-1,
    )
    num_workers: int = option(1, "Threads of the engine, with Mori over RDMA.", ge=1)

    @pydantic.field_validator("http_port")
    @classmethod
    def _told_with_proxy(cls, value: int | None, info: pydantic.ValidationInfo) -> int | None:
        if value is None and info.data.get("proxy_ip"):
            raise ValueError("has to be there with 'proxy_ip': the proxy sends requests to it")
        return value

    @pydantic.field_validator("backend_options")
    @classmethod
    def _known_there(cls, value: dict[str, Any], info: pydantic.ValidationInfo) -> dict[str, Any]:
        own = [key for key in _FOLLOWS if key in value]
        if own:
            raise ValueError(
                f"{', '.join(own)}: follows from host_ip, bind_ip and notify_port; remove it"
            )
        if "backend" not in info.data:
            return value
        name, extra = _connector(info.data["backend"], value, None)
        _, wrong = validate(registry.options_for(name), extra)
        if wrong:
            raise ValueError("; ".join(f"{'.'.join(one.place)} {one.text}" for one in wrong))
        return value

    @property
    def mode(self) -> Mode:
        return "READ" if self.read_mode else "WRITE"

    @property
    def connector(self) -> tuple[str, dict[str, Any]]:
        """Name and ``extra`` of what moves the bytes."""
        return _connector(self.backend, self.backend_options, self)


def _connector(
    backend: str, options: Mapping[str, Any], of_mori: KVOptions | None
) -> tuple[str, dict[str, Any]]:
    if backend not in ("rdma", "xgmi"):
        return backend, dict(options)
    extra: dict[str, Any] = {"backend_type": backend}
    if of_mori is not None:
        extra["qp_per_transfer"] = of_mori.qp_per_transfer
        extra["post_batch_size"] = of_mori.post_batch_size
        extra["num_worker_threads"] = of_mori.num_workers
    return registry.canonical("mori"), {**extra, **options}


def is_trusted(host: str, trusted: Sequence[str] | None) -> bool:
    """Whether a request may name a host; a name is compared as it is written."""
    if trusted is None or host in trusted:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in ipaddress.ip_network(one) for one in trusted if "/" in one)


class Mistake(NamedTuple):
    """One thing that is wrong."""

    path: str
    """Such as ``kv_connector_extra_config.notify_port``."""
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@dataclass(frozen=True)
class KVConfig:
    """What an instance is, and how it is set."""

    roles: tuple[Role, ...]
    options: KVOptions


def load_kv_config(
    source: str | Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> KVConfig:
    """Check what ``--kv-transfer-config`` takes.

    Args:
        source: the object or its JSON. Keys of the engine beside ``kv_connector``, ``kv_role`` and
            ``kv_connector_extra_config`` are left alone.
        environment: where older variables may still be set, to no effect; those are named in a warning.

    Raises:
        ConfigError: ``mistakes`` has each with its path.
    """
    _warn_of(environment or {})
    tree = _tree(source)
    mistakes = []
    roles = _ROLES.get(str(tree.get("kv_role")), ())
    if not roles:
        known = ", ".join(map(repr, _ROLES))
        mistakes.append(
            Mistake("kv_role", f"has to be one of {known}, not {tree.get('kv_role')!r}")
        )
    connector = tree.get("kv_connector")
    if connector is not None and connector not in CONNECTORS:
        mistakes.append(
            Mistake(
                "kv_connector", f"has to be {' or '.join(map(repr, CONNECTORS))}, not {connector!r}"
            )
        )
    for key in tree:
        meant = nearest(str(key), _OWN, 0.8)
        if key not in _OWN and meant is not None and meant not in tree:
            mistakes.append(Mistake(str(key), f"unknown key; did you mean {meant!r}?"))
    options = _options(tree.get(EXTRA), mistakes)
    if mistakes or options is None:
        raise refusal(mistakes)
    return KVConfig(roles, options)


def refusal(mistakes: list[Mistake]) -> ConfigError:
    """The error for these mistakes."""
    count = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    text = "\n".join(
        [f"kv_transfer_config has {count}:", *(f"  {mistake}" for mistake in mistakes)]
    )
    return ConfigError(text, path=mistakes[0].path or None, mistakes=tuple(mistakes))


def _tree(source: str | Mapping[str, Any]) -> Mapping[str, Any]:
    tree: Any = source
    if isinstance(source, str):
        try:
            tree = json.loads(source)
        except ValueError as error:
            raise refusal([Mistake("", f"this is not JSON: {error}")]) from None
    if not isinstance(tree, Mapping):
        raise refusal([Mistake("", f"it has to be an object, not {tree!r}")])
    return tree


def _options(extra: Any, mistakes: list[Mistake]) -> KVOptions | None:
    if extra is None:
        extra = {}
    if not isinstance(extra, Mapping):
        mistakes.append(Mistake(EXTRA, f"has to be an object, not {extra!r}"))
        return None
    given = {str(key): value for key, value in extra.items()}
    # As vLLM has them: numbers and truth values are often text, and 1 is true.
    lax = {key for key, value in given.items() if isinstance(value, str)}
    if type(given.get("read_mode")) is int:
        lax.add("read_mode")
    options, wrong = validate(KVOptions, given, lax)
    mistakes += [Mistake(".".join((EXTRA, *one.place)), one.text) for one in wrong]
    return options


def _warn_of(environment: Mapping[str, str]) -> None:
    for name in sorted(environment):
        if name.startswith(_VARIABLES):
            instead = _OLDER.get(name)
            _log.warning(
                "a variable is not read any more",
                variable=name,
                instead=f"{EXTRA}.{instead}" if instead else None,
            )
