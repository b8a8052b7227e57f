"""Options: what a connector's ``extra`` may hold.

In: values from a file or a caller. Out: frozen values with defaults, and what is known of each.
Never: reads the environment, looks at the system, knows a vendor.

The words of these models are the users' reference: the documentation and the JSON Schema are made
of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import pydantic
from pydantic import AfterValidator, BeforeValidator

from .hosts import NOBODY, checked_host

T = TypeVar("T")

GIB = 1 << 30


def option(
    default: Any,
    meaning: str,
    *,
    unit: str = "",
    edge_wide: bool = False,
    said: str = "",
    **rules: Any,
) -> Any:
    """A field of an options model.

    Args:
        default: its value where nothing is written.
        meaning: one or two sentences for users.
        unit: such as ``bytes`` or ``seconds``.
        edge_wide: both ends of an edge must agree in it.
        said: how its type is told to people, where its annotation does not tell it.
        rules: bounds and the like, as :func:`pydantic.Field` takes them.
    """
    told = {"unit": unit, "edge_wide": edge_wide, "said": said}
    known: dict[str, Any] = {word: value for word, value in told.items() if value}
    return pydantic.Field(default=default, description=meaning, json_schema_extra=known, **rules)


def known_of(field: pydantic.fields.FieldInfo) -> Mapping[str, Any]:
    """What :func:`option` was told beyond pydantic's own words."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _number(value: Any) -> Any:
    """Ports are written as text, too: ``"50051"``."""
    digits = isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value) is not None
    return int(value) if digits else value


def _nothing_is_text(value: Any) -> Any:
    """``device_name:`` with nothing behind it is how people leave a name empty."""
    return "" if value is None else value


def under_both_names(values: Any, name: str, other: str) -> Any:
    """Raw values with a number that is written under its other name only."""
    if not isinstance(values, dict) or name in values:
        return values
    number = values.get(other)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return values
    return {**values, name: number}


def checked_other_name(value: T, info: pydantic.ValidationInfo, name: str) -> T:
    """What an option says that is another name for one before it."""
    if value is not None and value != info.data.get(name, value):
        raise ValueError(f"is another name for {name}, which says otherwise")
    return value


def detected(value: str) -> str:
    return "auto" if value.lower() in NOBODY else value


def _checked(value: str | None) -> str | None:
    return None if value is None else checked_host(value)


def _told(value: str | None) -> str | None:
    """A peer's address cannot be detected: "auto" tells nothing."""
    return None if value is None or value.lower() in NOBODY else value


PORT_SAID = "a port from 1 to 65535"

Port = Annotated[
    int,
    BeforeValidator(_number),
    pydantic.Field(ge=1, le=65535),
    pydantic.WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": 65535},
                {"type": "string", "pattern": "^[0-9]+$"},
            ]
        }
    ),
]
"""A port; digits as text are taken as well."""

DeviceName = Annotated[
    str,
    BeforeValidator(_nothing_is_text),
    pydantic.WithJsonSchema({"type": ["string", "null"]}),
]
"""Names of devices; nothing at all is the empty name."""


class Options(pydantic.BaseModel):
    """Base of every connector's ``extra``: unknown keys are refused, values are not coerced."""

    model_config = pydantic.ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False
    )

    addressed: ClassVar[bool] = False
    """Whether the receiver is told the sender's host and port."""

    memory_pool_size: int | None = option(
        None,
        "Limit of the pool; by default a quarter of what this process may use, at most 4 GiB.",
        unit="bytes",
        gt=0,
    )
    buffer_ttl_seconds: float = option(
        300.0,
        "How long an unclaimed payload is kept; with 0 or less until it is fetched or cleaned up.",
        unit="seconds",
    )
    inline_limit: int = option(
        8192, "Largest payload that rides inside its offer.", unit="bytes", ge=0, le=1 << 20
    )
    peer_timeout: float = option(
        30.0, "Silence after which a peer counts as dead.", unit="seconds", gt=0
    )

    @classmethod
    def edge_wide(cls) -> frozenset[str]:
        """The options in which both ends of an edge must agree."""
        return frozenset(
            name for name, field in cls.model_fields.items() if known_of(field).get("edge_wide")
        )

    def edge_values(self) -> dict[str, Any]:
        """What is in force of :meth:`edge_wide`, to be compared with the other end."""
        return {name: getattr(self, name) for name in self.edge_wide()}

    @property
    def cross_host(self) -> bool:
        """Whether the two ends of an edge may be on different hosts."""
        return True

    @property
    def beside_pool(self) -> int:
        """Bytes of the host's memory that an end may take beside its pool."""
        return 0

    @property
    def ttl(self) -> float:
        """``buffer_ttl_seconds`` as a time span: infinite where it is 0 or less."""
        return self.buffer_ttl_seconds if self.buffer_ttl_seconds > 0 else math.inf


KEY_LENGTH = 40
"""Characters of a CURVE key, as Z85."""
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_HALVES = (("server_secret_key", "allowed_clients"), ("server_public_key", "client_secret_key"))


def is_secret(value: str | None) -> bool:
    """Whether it is a key itself and no name of a file."""
    return value is not None and _KEY.fullmatch(value) is not None


class CurveOptions(pydantic.BaseModel):
    """Keys by which words are encrypted and receivers are known. A sender reads the first two, a
    receiver the others. Each is a key, 40 characters of Z85, or the name of a file with one."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)

    server_secret_key: str | None = option(
        None, "The sender's own key. A file with it must be readable by its owner alone."
    )
    allowed_clients: list[str] | None = option(
        None,
        "Public keys of the receivers that are served; a file may have one on each line.",
        said="a list of keys, or of names of files with keys",
        min_length=1,
    )
    server_public_key: str | None = option(
        None, "The sender's public key, by which a receiver knows it."
    )
    client_secret_key: str | None = option(
        None, "The receiver's own key. A file with it must be readable by its owner alone."
    )

    @pydantic.field_validator("*")
    @classmethod
    def _not_empty(cls, value: str | list[str] | None) -> str | list[str] | None:
        if value is not None and not all([value] if isinstance(value, str) else value):
            raise ValueError("a key, or the name of a file with one, is not empty")
        return value

    @pydantic.model_validator(mode="after")
    def _whole(self) -> CurveOptions:
        there = {name for half in _HALVES for name in half if getattr(self, name) is not None}
        if not any(there.issuperset(half) for half in _HALVES):
            halves = " and ".join(map(" with ".join, _HALVES))
            raise ValueError(f"a sender needs {halves.replace(' and ', ', a receiver ')}")
        return self

    @pydantic.field_serializer("server_secret_key", "client_secret_key", when_used="json")
    def _hidden(self, value: str | None) -> str | None:
        return "(a secret key)" if is_secret(value) else value

    def __str__(self) -> str:
        return "set"

    __repr__ = __str__


class AddressedOptions(Options):
    """Options of a connector whose receiver is told where the sender listens."""

    addressed: ClassVar[bool] = True

    host: Annotated[str, AfterValidator(checked_host), AfterValidator(detected)] = option(
        "auto",
        "Where this end's sender listens. `auto`, as well as an empty text, `*`, `0.0.0.0` and "
        "`::`, is the address by which this host reaches others.",
        said="a host name or an address",
    )
    zmq_port: Port = option(
        50051,
        "Base of the ports on which senders listen: each one's own follows from it, the stage, "
        "the rank and the replica.",
        edge_wide=True,
        said=PORT_SAID,
    )
    sender_host: Annotated[str | None, AfterValidator(_checked), AfterValidator(_told)] = option(
        None,
        "Where the receiver finds the sender; by default the host of the sender's stage.",
        said="a host name or an address",
    )
    sender_zmq_port: Port | None = option(
        None,
        "The sender's final port; by default it is computed from `zmq_port` as the sender does.",
        said=PORT_SAID,
    )
    peer: Literal["omni-async", "vllm-omni"] = option(
        "omni-async",
        "Whose wire this edge speaks. With `vllm-omni` the other end may be a stage of "
        "vLLM-Omni 0.30, and ports are strided.",
        edge_wide=True,
    )
    port_scheme: Literal["compact", "strided"] = option(
        "compact",
        "How ports follow from `zmq_port`. `compact` packs them, which can give two endpoints "
        "one port; `strided` adds 1024 for a replica, 16 for a rank and 1 for a stage.",
        edge_wide=True,
    )

    curve: CurveOptions | None = option(
        None,
        "Keys, where words between sender and receiver are to be encrypted and only known receivers "
        "served: `server_secret_key` and `allowed_clients` for the sender, `server_public_key` and "
        "`client_secret_key` for the receiver. Without it anybody who reaches the port may ask.",
        edge_wide=True,
        said="keys, or names of files with keys",
    )

    @pydantic.field_validator("curve")
    @classmethod
    def _peer_has_keys(
        cls, value: CurveOptions | None, info: pydantic.ValidationInfo
    ) -> CurveOptions | None:
        if value is not None and info.data.get("peer") == "vllm-omni":
            raise ValueError("vLLM-Omni has no keys; remove this, or 'peer: vllm-omni'")
        return value

    @pydantic.field_validator("port_scheme")
    @classmethod
    def _peer_knows_it(cls, value: str, info: pydantic.ValidationInfo) -> str:
        if value == "compact" and info.data.get("peer") == "vllm-omni":
            raise ValueError("'peer: vllm-omni' means strided ports; remove this line")
        return value

    @property
    def scheme(self) -> Literal["compact", "strided"]:
        """The scheme in force."""
        return "strided" if self.peer == "vllm-omni" else self.port_scheme

    def edge_values(self) -> dict[str, Any]:
        # Whether there are keys: which, each end knows of itself.
        keys = "set" if self.curve is not None else None
        return {**super().edge_values(), "port_scheme": self.scheme, "curve": keys}

    @property
    def curve_keys(self) -> dict[str, Any] | None:
        """:attr:`curve` as plain values."""
        return None if self.curve is None else self.curve.model_dump(exclude_none=True)


class StoreOptions(Options):
    """Options of a connector whose two ends meet at a server that keeps bytes under keys."""

    peer: Literal["omni-async", "vllm-omni"] = option(
        "omni-async",
        "Whose objects this edge puts and gets. With `vllm-omni` the other end may be a stage of "
        "vLLM-Omni 0.30: same keys, without a namespace, and its object format.",
        edge_wide=True,
    )
    evictable: bool = option(
        False,
        "Whether the store may drop unclaimed payloads when it is full. Otherwise a put waits for room.",
    )
    setup_timeout: float = option(
        10.0,
        "How long opening tries to reach the server, which may start later; then it fails.",
        unit="seconds",
        gt=0,
    )

    @property
    def offer_seconds(self) -> float | None:
        """How long a get waits to be offered its payload where its caller says nothing: infinite for no limit,
        ``None`` for as long as on every transport."""
        return None
