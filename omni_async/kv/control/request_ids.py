"""Request ids that carry the addresses of both instances, as proxies make and engines dress them.

In: ids of requests. Out: both addresses in them; ids.
Never: takes an id for what a transfer is called: engines add to it, each side something else.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from ...errors import ProtocolError, UsageError
from .addresses import ZmqAddress

_PREFILL = "___prefill_addr_"
_DECODE = "___decode_addr_"
_UNIQUE = re.compile(r"_([0-9a-f]{32})(?:-|$)")
_LONGEST = 8192


@dataclass(frozen=True)
class RequestId:
    """What a proxy wrote into an id. Some write other things than addresses of instances."""

    prefill: str
    decode: str
    unique: str
    """32 hexadecimal digits."""

    def __str__(self) -> str:
        return f"{_PREFILL}{self.prefill}{_DECODE}{self.decode}_{self.unique}"

    @property
    def prefill_address(self) -> ZmqAddress:
        """Raises: ProtocolError: the id carries something else."""
        return ZmqAddress.parse(self.prefill)

    @property
    def decode_address(self) -> ZmqAddress:
        """Raises: ProtocolError: the id carries something else."""
        return ZmqAddress.parse(self.decode)

    @classmethod
    def find(cls, text: str) -> RequestId | None:
        """What is in an id, whatever an engine put around it: ``cmpl-…-0``, ``0_cmpl-…-0-1a2b3c4d``.

        ``None`` where there are no addresses in it.
        """
        if not isinstance(text, str) or len(text) > _LONGEST:
            return None
        _, begun, rest = text.partition(_PREFILL)
        prefill, between, rest = rest.partition(_DECODE)
        end = _UNIQUE.search(rest)
        if not begun or not between or end is None or not prefill or not end.start():
            return None
        return cls(prefill, rest[: end.start()], end[1])

    @classmethod
    def parse(cls, text: str) -> RequestId:
        """Raises: ProtocolError: there are no addresses in it."""
        found = cls.find(text)
        if found is None:
            raise ProtocolError(
                f"request id {text[:200]!r} carries no addresses: expected "
                f"'{_PREFILL}…{_DECODE}…_' and 32 hexadecimal digits"
            )
        return found


def new_request_id(prefill: ZmqAddress, decode: ZmqAddress, unique: str | None = None) -> str:
    """An id for one request that both instances get.

    Args:
        unique: 32 hexadecimal digits; new ones by default.

    Raises:
        UsageError: an address would not be found again.
    """
    made = RequestId(str(prefill), str(decode), uuid.uuid4().hex if unique is None else unique)
    if RequestId.find(str(made)) != made:
        raise UsageError(f"{made} cannot be told from the addresses in it; use other host names")
    return str(made)
