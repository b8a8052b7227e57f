"""What a deploy file's stages and edges need of this host and of the way to others.

In: a deployment. Out: findings about its stages and edges.
Never: opens a transport, leaves a socket open.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from ...abc import Finding, Sight
from ...abc.findings import fault, ok, warning
from ...abc.hosts import is_host
from ...deploy import Deploy, StagePlan, Wire
from ...deploy.endpoints import counterpart, sending_endpoints
from ...deploy.finding import HERE, Address, find_sender, variable_of
from ...deploy.ports import SendingEndpoint
from ...errors import ConfigError
from ...rendezvous.zmq_hosts import routed_address
from .network import Network, Unanswered, given_out
from .words import Told

LOOPBACK = "127.0.0.1"
_NOBODY_THERE = (errno.ECONNREFUSED, errno.ECONNRESET)


class Places(NamedTuple):
    """Which stages run here, as far as the file tells."""

    here: tuple[StagePlan, ...]
    told: tuple[Told, ...]


async def places(deploy: Deploy, chosen: Sequence[str], network: Network) -> Places:
    """The stages of this host: those that were chosen, else those whose ``host`` is none or is this one.

    Cancellation: safe.
    """
    here: list[StagePlan] = []
    told: list[Told] = []
    for plan in deploy.stages.values():
        about = f"stage {plan.id}"
        if chosen and plan.id not in chosen:
            continue
        if not is_host(plan.host):
            here.append(plan)
            continue
        assert plan.host is not None
        try:
            local = await network.local(plan.host)
        except Unanswered as error:
            remedy = f"correct 'host' of {about}, or add it to /etc/hosts or the name service"
            told.append(Told(about, fault("host", str(error), remedy)))
            continue
        if local:
            here.append(plan)
            told.append(Told(about, ok("host", f"{plan.host} is this host")))
        elif chosen:
            remedy = f"run it on {plan.host}, or correct 'host' of {about}"
            told.append(
                Told(about, fault("host", f"{plan.host} is no address of this host", remedy))
            )
        else:
            told.append(Told(about, ok("host", f"runs on {plan.host}, not here: not looked at")))
    return Places(tuple(here), tuple(told))


async def listening(
    deploy: Deploy, here: Sequence[StagePlan], network: Network, sight: Sight
) -> list[Told]:
    """Whether senders of these stages can listen where they are to. Cancellation: safe."""
    told: list[Told] = []
    ids = {plan.id for plan in here}
    endpoints = [each for each in sending_endpoints(deploy.stages) if each.stage in ids]
    for stage in (plan.id for plan in here):
        mine = [each for each in endpoints if each.stage == stage]
        told += [Told(f"stage {stage}", one) for one in await _listening(mine, network, sight)]
    return told


async def _listening(
    endpoints: Sequence[SendingEndpoint], network: Network, sight: Sight
) -> list[Finding]:
    found: list[Finding] = []
    for address in dict.fromkeys(each.address for each in endpoints):
        ports = sorted({each.port for each in endpoints if each.address == address})
        where = address or routed_address() or LOOPBACK
        try:
            if address is not None and not await network.local(address):
                found.append(
                    fault(
                        "host",
                        f"{address} is no address of this host, and its senders are to listen there",
                        f"host: auto ({routed_address() or LOOPBACK} here) in the connector's extra; or name "
                        "the 'host' of stages that run elsewhere, or leave them out by --stage",
                    )
                )
                continue
            taken = [
                why for port in ports if (why := await network.listening(where, port)) is not None
            ]
        except Unanswered as error:
            found.append(fault("host", str(error), "correct host in the connector's extra"))
            continue
        if taken:
            found += [
                fault("port", why, "end who has it, or use another zmq_port on both sides")
                for why in taken
            ]
        else:
            found.append(ok("port", f"free at {where}: {_ranges(ports)}"))
        exposed = [port for port in ports if given_out(sight, port)]
        if exposed:
            spans = _ranges(exposed)
            found.append(
                warning(
                    "port",
                    f"the kernel may give {spans} to any program that asks for a port before the stage starts",
                    f"sysctl net.ipv4.ip_local_reserved_ports={spans}, or a zmq_port outside of "
                    "net.ipv4.ip_local_port_range",
                )
            )
    return found


async def reaching(deploy: Deploy, here: Sequence[StagePlan], network: Network) -> list[Told]:
    """Whether receivers of these stages reach their senders' hosts. Cancellation: safe."""
    told: list[Told] = []
    for plan in here:
        for wire in plan.inputs:
            found = await _reaching(deploy, plan, wire, network)
            told += [Told(f"edge {wire.name}", one) for one in found]
    return told


async def _reaching(deploy: Deploy, plan: StagePlan, wire: Wire, network: Network) -> list[Finding]:
    connector = wire.receiver
    if not connector.addressed:
        return []
    sender = deploy.stages[wire.name.from_stage]
    try:
        addresses = {
            find_sender(
                deploy.stages, wire, counterpart(sender, plan, rank, replica), os.environ, None
            )
            for rank in range(plan.tensor_parallel_size)
            for replica in range(plan.num_replicas)
        }
    except ConfigError as error:
        return [
            fault(variable_of(sender.id), str(error), f"export {variable_of(sender.id)}=host:port")
        ]
    found: list[Finding] = []
    for address in sorted(addresses):
        found.append(await _reached(address, wire, network))
    return found


async def _reached(address: Address, wire: Wire, network: Network) -> Finding:
    stage = wire.name.from_stage
    if address.host == HERE:
        return ok("sender", f"is expected on this host, at port {address.port}")
    where = f"{address.host}:{address.port}"
    try:
        if await network.local(address.host):
            return ok("sender", f"is expected on this host, at {where}")
        error = await network.reach(*address)
    except Unanswered as unanswered:
        remedy = f"correct 'host' of stage {stage} or sender_host, or export {variable_of(stage)}"
        return fault("sender", str(unanswered), remedy)
    if error is None:
        return ok("sender", f"{where} answers")
    if error.errno in _NOBODY_THERE:
        return warning(
            "sender",
            f"{where} refuses: nobody listens there yet",
            f"start stage {stage} there; a receiver waits for it",
        )
    return fault(
        "sender",
        f"{where} cannot be reached ({error.strerror or error})",
        f"open the port in firewalls on the way, start the host, or correct 'host' of stage {stage}",
    )


def _ranges(ports: Sequence[int]) -> str:
    """``50051-50053,50151``."""
    spans: list[list[int]] = []
    for port in ports:
        if spans and port == spans[-1][1] + 1:
            spans[-1][1] = port
        else:
            spans.append([port, port])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
