"""What the doctor is told of this engine.

In: options, where to look. Out: findings.
Never: raises for what it finds; the process it runs in ends afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...abc import Finding, Sight
from ...abc.findings import fault, ok, warning
from ..probes import limits, rdma, topology, variables
from .checks import (
    PACKAGES,
    Machine,
    Problem,
    device_problems,
    environment_problems,
    named_devices,
    package_problem,
    pinning_problems,
    rdma_problems,
)
from .config import MooncakeTransferEngineOptions

ORDERING = "MC_IB_PCI_RELAXED_ORDERING"
METRIC = "MC_TE_METRIC"


def findings(options: MooncakeTransferEngineOptions, machine: Machine) -> Iterator[Finding]:
    """All that can be found without an engine."""
    package = package_problem(machine, options.host)
    if package is None:
        told = [f"{name} {machine.version(name)}" for name in PACKAGES if machine.version(name)]
        yield ok("package", ", ".join(told) or "Mooncake is here, of no known version")
    else:
        yield _told("package", package)
    for problem in environment_problems(options.protocol, machine.environ):
        yield _told(problem.setting, problem)
    device = options.memory_pool_device
    if device != "cpu":
        problems = list(device_problems(device, machine, options.host, loaded=package is None))
        yield from (_told("memory_pool_device", problem) for problem in problems)
        if not problems:
            yield ok("memory_pool_device", f"PyTorch has {device}")
    yield from _variables(options, machine)
    if options.protocol == "rdma":
        yield from _rdma(options, machine, loaded=package is None)


def _variables(options: MooncakeTransferEngineOptions, machine: Machine) -> Iterator[Finding]:
    environ = machine.environ
    effect = "the engine writes its figures into its log"
    yield from variables.choice(environ, METRIC, ("0", "false", "true", "1"), effect)
    effect = "1 and 2 let cards order their writes freely"
    yield from variables.choice(environ, ORDERING, ("0", "2", "1"), effect)
    on_gpu = options.protocol == "rdma" and options.memory_pool_device != "cpu"
    if on_gpu and environ.get(ORDERING, "0") == "0":
        yield warning(
            ORDERING,
            f"is off, and cards reach {options.memory_pool_device} at a fraction of their speed then",
            f"export {ORDERING}=1",
        )


def _rdma(
    options: MooncakeTransferEngineOptions, machine: Machine, *, loaded: bool
) -> Iterator[Finding]:
    sight = Sight(machine.root, machine.environ)
    cards, told = rdma.look(sight)
    yield from told
    names = named_devices(options, machine.environ)
    whence = "device_name" if options.device_name else "RDMA_DEVICE_NAME"
    unknown = list(rdma.unknown(",".join(names), cards, whence))
    yield from unknown
    if not unknown and not any(one.status == "fault" for one in told):
        left = list(rdma_problems(options, machine, loaded=loaded and sight.here))
        yield from (_told("RDMA", problem) for problem in left)
        if not left and names:
            yield ok(whence, f"{', '.join(names)} carries what this engine moves")
    if options.memory_pool_device == "cpu":
        size = options.memory_pool_size or limits.usual_pool(sight)
        yield limits.pinning(sight, size, machine.memlock())
        for problem in pinning_problems(options, machine):
            if problem.setting:
                yield _told(problem.setting, problem)
    if cards:
        near, told = topology.look(sight)
        yield from told
        if near is not None:
            yield from topology.advice(near, options.memory_pool_device, names)


def _told(subject: str, problem: Problem) -> Finding:
    return fault(subject, problem.what, problem.remedy, absent=problem.absent)
