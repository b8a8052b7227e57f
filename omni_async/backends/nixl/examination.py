"""What the doctor is told of NIXL.

In: options, where to look. Out: findings.
Never: makes an agent.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...abc import Finding, Sight
from ...abc.findings import fault, of_error, ok
from ...errors import ConfigError
from ..probes import limits, rdma, topology
from .checks import Machine, device_of, problems, versions
from .config import NixlOptions


def findings(options: NixlOptions, sight: Sight) -> Iterator[Finding]:
    """Package, device, and the ways that UCX can take here."""
    machine = Machine(root=sight.root)
    try:
        device = device_of(options)
    except ConfigError as error:
        yield of_error(error)
        return
    installed = versions(machine)
    wrong = list(problems(device, machine))
    for what, remedy in wrong:
        yield fault(
            "package" if device not in what else "receive_device",
            what,
            remedy,
            absent=not installed,
        )
    if not wrong:
        yield ok("package", installed or "NIXL is here, of no known version")
    if "UCX_TLS" in sight.environ:
        yield ok("UCX_TLS", f"set to {sight.environ['UCX_TLS']}: UCX takes no other ways")
    yield limits.reaching(sight)
    yield limits.shared_memory(sight)
    # Without a card UCX takes TCP or memory of the host, and nothing is wrong with that.
    if rdma.devices(sight):
        cards, told = rdma.look(sight)
        yield from told
        if device == "cpu":
            yield limits.pinning(sight, options.memory_pool_size or limits.usual_pool(sight))
        near, told = topology.look(sight)
        yield from told
        if near is not None:
            yield from topology.advice(near, device, [card.name for card in cards])
