"""Where a receiver finds its sender.

In: an edge, and what the caller, the environment and the file say. Out: a host and a port.
Never: asks a network, waits, reads ``os.environ`` itself.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..errors import ConfigError, UsageError
from .deployment import StagePlan, Wire
from .endpoints import Counterpart, addressed, sender_port
from .hosts import is_host
from .ports import FIRST_PORT, LAST_PORT, is_port

Resolve = Callable[[str, int, int], tuple[str, int]]
"""``(stage, rank, replica) -> (host, port)`` of that sender."""

HERE = "auto"
"""The address by which this host reaches others: where a sender of this host listens by default."""


class Address(NamedTuple):
    """Where to connect; an IPv6 address is without brackets here, and :data:`HERE` is no name."""

    host: str
    port: int


def variable_of(stage: str) -> str:
    """The environment variable that says where a stage's senders are.

    ``OMNI_ASYNC_STAGE_<ID>_HOST``: the id in upper case, with ``_`` for all but letters and digits.
    """
    return f"OMNI_ASYNC_STAGE_{re.sub('[^A-Z0-9]', '_', stage.upper())}_HOST"


def find_sender(
    stages: Mapping[str, StagePlan],
    wire: Wire,
    sender: Counterpart,
    environ: Mapping[str, str],
    resolve: Resolve | None,
) -> Address:
    """Where the receiver of an addressed ``wire`` connects; the first that tells is believed.

    - ``resolve``, if there is one, tells host and port.
    - The host: the environment (:func:`variable_of`), the connector's ``sender_host``, the ``host`` of
      the sender's stage, the ``host`` of its connector, :data:`HERE`.
    - The port: the environment, the connector's ``sender_zmq_port``, the formula of :mod:`.ports`.
      The first two are final: they mean this one sender, whatever rank and replica it has.

    Raises:
        UsageError: ``resolve`` returned no address.
        ConfigError: the variable holds no address, or two stages share its name.
    """
    stage = wire.name.from_stage
    if resolve is not None:
        return _checked(resolve(stage, sender.rank, sender.replica), stage)
    host, port = _from_environment(stage, stages, environ)
    settings = addressed(wire.receiver)
    candidates = (
        host,
        settings.sender_host,
        stages[stage].host,
        addressed(wire.sender).host,
    )
    if port is None:
        port = settings.sender_zmq_port
    if port is None:
        port = sender_port(stages, stage, wire.sender, *sender)
    return Address(next(filter(is_host, candidates), None) or HERE, port)


def _checked(found: Any, stage: str) -> Address:
    if inspect.iscoroutine(found):
        found.close()
        raise UsageError("resolve has to be a plain function, not an async one")
    match found:
        case (str(host), int(port)) if is_host(host) and is_port(port) and port is not True:
            return Address(host, port)
    raise UsageError(
        f"resolve has to return the (host, port) of a sender of stage {stage}, a text that names a "
        f"host and an int from {FIRST_PORT} to {LAST_PORT}, not {found!r}"
    )


def _from_environment(
    stage: str, stages: Iterable[str], environ: Mapping[str, str]
) -> tuple[str | None, int | None]:
    name = variable_of(stage)
    text = environ.get(name, "").strip()
    if not text:
        return None, None
    sharing = [other for other in stages if variable_of(other) == name]
    if len(sharing) > 1:
        raise ConfigError(
            f"the environment variable {name} could mean any of the stages {', '.join(sharing)}; "
            "unset it, and use 'host' in the file or resolve"
        )
    found = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]]+))(?::([0-9]{1,5}))?", text)
    if found is not None:
        host, port = found[1] or found[2], None if found[3] is None else int(found[3])
        if is_host(host) and (port is None or is_port(port)):
            return host, port
    raise ConfigError(
        f"the environment variable {name} has to be a host or host:port, an IPv6 address in brackets "
        f"and the port from {FIRST_PORT} to {LAST_PORT}, not {text!r}"
    )
