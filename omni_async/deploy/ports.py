"""Where sending endpoints listen: a formula, and who would meet whom by it.

In: endpoints of a deployment: stage, rank, replica, purpose, base port. Out: ports, collisions.
Never: reads the environment or a file, binds or probes a port.

Two schemes give an endpoint its port. Both begin with ``zmq_port + offset of the purpose``:

- ``compact`` adds ``stage + replica * tensor_parallel_size + rank``;
- ``strided`` adds ``replica * 1024 + rank * 16 + stage``, as vLLM-Omni 0.30 does.

The *stage* in them is that of the sender. A receiver computes the port of the rank and replica that
sends to it by the same formula, so nobody has to tell anybody a port.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from .hosts import may_be_one

Scheme = Literal["compact", "strided"]

FIRST_PORT = 1
LAST_PORT = 65535
RANK_STRIDE = 16
REPLICA_STRIDE = 1024


class Purpose(enum.Enum):
    """What an endpoint is for; the value is added to the base port."""

    REQUEST_FORWARDING = 0
    KV_TRANSFER = 100
    ORCHESTRATOR = 200

    def __str__(self) -> str:
        return self.name.lower()


class SendingEndpoint(NamedTuple):
    """One socket that some process of the deployment binds."""

    connector: str
    """The connector's name, for people."""
    stage: str
    number: int
    """What the formula takes for the stage: :func:`stage_number`."""
    rank: int
    replica: int
    tensor_parallel_size: int
    purpose: Purpose
    base_port: int
    scheme: Scheme
    host: str | None
    """``None`` where nothing says which: it may be any."""
    address: str | None = None
    """The local address it binds; ``None`` for all of its host's."""

    @property
    def port(self) -> int:
        """Where it listens. May be no port at all; see :func:`is_port`."""
        if self.scheme == "strided":
            ours = self.replica * REPLICA_STRIDE + self.rank * RANK_STRIDE
        else:
            ours = self.replica * self.tensor_parallel_size + self.rank
        return self.base_port + self.purpose.value + self.number + ours

    def __str__(self) -> str:
        who = f"stage {self.stage} rank {self.rank} replica {self.replica}"
        return f"{who} ({self.purpose} over {self.connector})"


class Collision(NamedTuple):
    """Two endpoints that one host would have to give the same port."""

    first: SendingEndpoint
    second: SendingEndpoint

    @property
    def port(self) -> int:
        return self.first.port


def stage_number(stage: str, position: int) -> int:
    """A stage's number in the formula: the id itself, or its position where the id is a word.

    A number too long for any port is told as :data:`LAST_PORT`, which leads to none either.
    """
    if re.fullmatch("[0-9]+", stage) is None:
        return position
    digits = stage.lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(LAST_PORT)) else LAST_PORT


def is_port(port: int) -> bool:
    """Whether a socket can be bound to it by number."""
    return FIRST_PORT <= port <= LAST_PORT


def collisions(endpoints: Iterable[SendingEndpoint]) -> Iterator[Collision]:
    """Every two endpoints that may be on one host and get the same port there."""
    for together in _by_port(endpoints):
        for first, second in itertools.combinations(together, 2):
            if may_be_one(first.host, second.host) and may_be_one(first.address, second.address):
                yield Collision(first, second)


def meetings(endpoints: Iterable[SendingEndpoint]) -> Iterator[Collision]:
    """Of :func:`collisions` one for each group of stages, connectors and purposes that meet.

    Many ranks collide like one: whether two endpoints on a port may be on one host is the same for all
    their ranks and replicas, so each group is looked at once.
    """
    groups: dict[tuple[tuple[str, str, Purpose], ...], list[SendingEndpoint]] = {}
    for together in _by_port(endpoints):
        groups.setdefault(tuple((e.stage, e.connector, e.purpose) for e in together), together)
    for together in groups.values():
        yield from collisions(together)


def _by_port(endpoints: Iterable[SendingEndpoint]) -> Iterable[list[SendingEndpoint]]:
    """Those that get the same port, wherever they are."""
    found: dict[int, list[SendingEndpoint]] = {}
    for endpoint in endpoints:
        found.setdefault(endpoint.port, []).append(endpoint)
    return found.values()


def way_out(endpoints: Sequence[SendingEndpoint]) -> str:
    """What to change where some of these collide, so that none does."""
    strided = [endpoint._replace(scheme="strided") for endpoint in endpoints]
    if not any(meetings(strided)) and all(is_port(endpoint.port) for endpoint in strided):
        compact = [endpoint.connector for endpoint in endpoints if endpoint.scheme == "compact"]
        names = " and ".join(dict.fromkeys(compact))
        return f"write 'port_scheme: strided' in the extra of {names}"
    return "let one of them use a connector with another zmq_port, or start fewer ranks"
