"""Whether the pools of all processes of this host fit into its memory.

In: stages, how much memory there is. Out: findings.
Never: allocates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ... import registry
from ...abc import Finding, Sight
from ...abc.findings import fault, ok, warning
from ...deploy import Connector, StagePlan
from ...deploy.endpoints import grouped
from ...errors import ConfigError, OmniAsyncError
from ...model import Role, Verb
from ...pool import checked_limit, memory_allowance

SUBJECT = "memory"


class Pool(NamedTuple):
    """What the transports of one kind take, of all ranks and replicas of a stage on this host."""

    who: str
    each: int
    many: int
    written: bool
    """Whether the file says how much, or it is the default."""

    @property
    def nbytes(self) -> int:
        return self.each * self.many


def allowance(sight: Sight) -> int:
    """Bytes that a process of this host or container may use."""

    def read(path: str) -> str:
        return (sight.root / path.lstrip("/")).read_text(errors="replace")

    return memory_allowance(read)


def findings(plans: Sequence[StagePlan], there: int) -> Iterator[Finding]:
    """Each pool, and all of them together."""
    pools: list[Pool] = []
    for plan in plans:
        for role, connector, transports in _transports(plan):
            who = f"stage {plan.id}, {role} over {connector.alias or connector.name}"
            try:
                pools += _pools(who, connector, role, transports, there)
            except ConfigError as error:
                yield fault("memory_pool_size", f"{who}: {error}", "lower memory_pool_size")
            except OmniAsyncError:
                continue  # it is planned, or its package is broken: told elsewhere
    written = sum(pool.nbytes for pool in pools if pool.written)
    total = sum(pool.nbytes for pool in pools)
    if not pools:
        return
    largest = max(pools, key=lambda pool: pool.nbytes)
    told = (
        f"pools and what stores are lent come to {total:,} bytes at most, of {there:,} that there are; "
        f"most of it for {largest.who} ({largest.many} x {largest.each:,})"
    )
    remedy = "lower memory_pool_size (or a store's segment); past a cgroup's memory.max processes are killed"
    if written > there:
        yield fault(SUBJECT, told, remedy)
    elif total > there:
        yield warning(
            SUBJECT, told, f"write memory_pool_size, for defaults are generous; or {remedy}"
        )
    else:
        yield ok(SUBJECT, told)


def _transports(plan: StagePlan) -> Iterator[tuple[Role, Connector, int]]:
    """Connectors with how many transports one process opens over them."""
    for connector, _ in grouped(plan.outputs, "sender"):
        yield "sender", connector, plan.num_replicas * plan.tensor_parallel_size
    for connector, wires in grouped(plan.inputs, "receiver"):
        each = len(wires) if connector.addressed else 1
        yield "receiver", connector, each * plan.num_replicas * plan.tensor_parallel_size


def _pools(
    who: str, connector: Connector, role: Role, transports: int, there: int
) -> Iterator[Pool]:
    settings = connector.settings
    capabilities = registry.backend_for(connector.name).capabilities(settings)
    # A receiver that maps its sender's memory has none of its own.
    if not capabilities.device_memory and (capabilities.verb, role) != (Verb.MAP, "receiver"):
        size = checked_limit(settings.memory_pool_size, allowance=there)
        yield Pool(who, size, transports, settings.memory_pool_size is not None)
    if settings.beside_pool:
        yield Pool(f"{who}, beside its pool", settings.beside_pool, transports, True)
