"""Addresses of instances: ``host:IP,handshake:PORT,notify:PORT``, and where each rank of one listens.

In: texts of proxies and requests. Out: host and ports, and texts again.
Never: asks a name service, takes what would break the header of a request.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...abc.hosts import is_host
from ...errors import ProtocolError, UsageError
from .ports import PORT_LIMIT

_KEYS = ("host", "handshake", "notify")
_LONGEST = 1024


@dataclass(frozen=True)
class ZmqAddress:
    """Where an instance's peers find it. Ports are bases: each rank listens above them.

    Raises:
        UsageError: no host or no port, or one that an address cannot have in it.
    """

    host: str
    """A name or an address, an IPv6 address without brackets."""
    handshake: int
    notify: int

    def __post_init__(self) -> None:
        if not is_host(self.host) or not self.host.isascii() or "," in self.host:
            raise UsageError(
                f"{self.host!r} is no host that peers can be told: expected a name or an address "
                "without brackets and commas"
            )
        for name in ("handshake", "notify"):
            port = getattr(self, name)
            if type(port) is not int or not 0 < port < PORT_LIMIT:
                raise UsageError(f"{name}: {port!r} is no port")

    def __str__(self) -> str:
        return f"host:{self.host},handshake:{self.handshake},notify:{self.notify}"

    @property
    def engine_id(self) -> str:
        """How instances call each other's engine: ``IP:PORT``."""
        return f"{self.host}:{self.handshake}"

    @classmethod
    def parse(cls, text: str) -> ZmqAddress:
        """Read an address. Keys that are not known are for others, and are left alone.

        Raises:
            ProtocolError: it is none; says why.
        """
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise ProtocolError(f"{str(text)[:80]!r} is no address of an instance")
        # Each part ends its name at its first colon: an IPv6 address has more of them.
        parts = (part.partition(":") for part in text.split(","))
        found = {name.strip(): value.strip() for name, colon, value in parts if colon}
        missing = [name for name in _KEYS if not found.get(name)]
        if missing:
            raise ProtocolError(
                f"{text!r} is no address of an instance, it does not tell {' and '.join(missing)}: "
                "expected 'host:IP,handshake:PORT,notify:PORT'"
            )
        host = found["host"]
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        try:
            return cls(host, _port(found["handshake"]), _port(found["notify"]))
        except UsageError as error:
            raise ProtocolError(f"{text!r} is no address of an instance: {error}") from None


def _port(digits: str) -> int:
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else 0


def http_address(host: str, port: int) -> str:
    """``IP:PORT`` as a proxy makes a URL of it: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
