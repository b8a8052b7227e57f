"""Hosts made of files and scripts, sound or with something wrong."""

from __future__ import annotations

import os
from pathlib import Path

NVIDIA = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tNODE\tSYS\t0-51\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tSYS\tPXB\t52-103\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tNODE\tSYS
NIC1\tNODE\tSYS\tNODE\t X \tSYS
NIC2\tSYS\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self
  PIX  = Connection traversing at most a single PCIe bridge

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
  NIC2: mlx5_2
"""
"""``nvidia-smi topo -m``, its heading underlined as in a terminal."""

NVIDIA_OLDER = """\
        GPU0    GPU1    mlx5_0  mlx5_1  CPU Affinity
GPU0     X      PHB     PIX     SYS     0-15
GPU1    PHB      X      SYS     PIX     16-31
mlx5_0  PIX     SYS      X      SYS
mlx5_1  SYS     PIX     SYS      X
"""
NVIDIA_ALONE = "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-15\tN/A\n"

ROCM = """\
======================= ROCm System Management Interface =======================
=========================== Weight between two GPUs ============================
       GPU0         GPU1
GPU0   0            15
GPU1   15           0

========================== Link Type between two GPUs ==========================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   XGMI         0

================================== Numa Nodes ==================================
GPU[0]          : (Topology) Numa Node: 0
"""

IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.39.1002
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tLink layer: InfiniBand
CA 'mlx5_1'
\tCA type: MT4129
\tNumber of ports: 2
\tPort 1:
\t\tState: Down
\t\tPhysical state: Disabled
\t\tRate: 40
\t\tLink layer: Ethernet
\tPort 2:
\t\tState: Initializing
\t\tPhysical state: LinkUp
\t\tRate: 100
\t\tLink layer: InfiniBand
"""
NETDEVS = """\
mlx5_0 port 1 ==> ib0 (Up)
mlx5_1 port 1 ==> eth2 (Down)
"""
IBV_DEVICES = """\
    device          \t   node GUID
    ------          \t----------------
    mlx5_0          \te8ebd30300a5cf4c
    mlx5_1          \te8ebd30300a5cf4d
"""
ABI = (
    "libibverbs: Warning: Driver bnxt_re does not support the kernel ABI of 6 (supports 1 to 1) "
    "for device /sys/class/infiniband/rdma4\n"
)
NO_DRIVER = (
    "libibverbs: Warning: no userspace device-specific driver found for "
    "/sys/class/infiniband_verbs/uverbs0\n"
)
ALL, NONE = "000001ffffffffff", "0000000000000000"
GIB = 1 << 30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def card(root: Path, name: str, state: str = "4: ACTIVE", physical: str = "5: LinkUp") -> None:
    """One RDMA card as the kernel shows it."""
    port = root / "sys/class/infiniband" / name / "ports/1"
    write(port / "state", f"{state}\n")
    write(port / "phys_state", f"{physical}\n")
    write(port / "rate", "400 Gb/sec (4X NDR)\n")
    write(port / "link_layer", "InfiniBand\n")


def host(root: Path, *, capabilities: str = ALL, memory: int = 64 * GIB) -> Path:
    """A sound one, with two cards."""
    card(root, "mlx5_0")
    card(root, "mlx5_1")
    write(root / "dev/infiniband/uverbs0", "")
    write(root / "proc/self/status", f"CapEff:\t{capabilities}\n")
    kib = memory >> 10
    write(root / "proc/meminfo", f"MemTotal: {kib} kB\nMemAvailable: {kib} kB\n")
    return root


def limited(root: Path, nbytes: int) -> None:
    """A container whose memory.max is less than the host's memory."""
    write(root / "proc/self/cgroup", "0::/pod/box\n")
    write(root / "proc/self/mountinfo", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    write(root / "sys/fs/cgroup/pod/box/memory.max", f"{nbytes}\n")


def tool(folder: Path, name: str, text: str = "", errors: str = "", *, status: int = 0) -> None:
    """A program that prints this."""
    write(folder / f"{name}.out", text)
    write(folder / f"{name}.err", errors)
    script = folder / name
    script.write_text(
        f"#!/bin/sh\n/bin/cat '{folder}/{name}.out'\n/bin/cat '{folder}/{name}.err' >&2\nexit {status}\n"
    )
    script.chmod(0o755)


def tools(folder: Path) -> Path:
    """Those of a sound host."""
    folder.mkdir(exist_ok=True)
    tool(folder, "ibv_devices", IBV_DEVICES)
    tool(folder, "ibdev2netdev", NETDEVS.replace("Down", "Up"))
    tool(folder, "nvidia-smi", NVIDIA)
    return folder


def path_of(folder: Path) -> str:
    """``PATH`` with these tools before the usual ones."""
    return os.pathsep.join([str(folder), "/usr/bin", "/bin"])
