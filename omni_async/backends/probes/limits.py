"""Limits under which this process runs: what it may pin, open, keep in /dev/shm, and whose memory it may reach.

In: ``/proc``, limits of the process, the device of a pool. Out: findings.
Never: changes a limit.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
from collections.abc import Callable

from ...abc import Finding, Sight
from ...abc.findings import fault, ok, warning

IPC_LOCK, SYS_PTRACE = 14, 19
"""Numbers of capabilities."""
LEAST_SHM = 256 << 20
"""Bytes of /dev/shm below which a container's default is suspected: Docker gives 64 MB."""
LEAST_FILES = 4096
"""Descriptors; a connection takes a few, and so does each card's queue pair."""


def capable(sight: Sight, number: int) -> bool:
    """Whether this process has a capability."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", sight.text("proc/self/status"), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


def memlock() -> int:
    """Bytes that may be pinned by who has not the capability."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return limit if limit != resource.RLIM_INFINITY else 1 << 63


def usual_pool(sight: Sight) -> int:
    """Bytes that a pool of the host has at most where nothing is said."""
    found = re.search(r"^MemTotal:\s*(\d+) kB", sight.text("proc/meminfo"), re.MULTILINE)
    most = 4 << 30
    return most if found is None else min(most, int(found[1]) * 1024 // 4)


def pinning(sight: Sight, size: int, limit: int | None = None) -> Finding:
    """Whether a pool of the host may be pinned, as RDMA cards need it."""
    limit = memlock() if limit is None else limit
    if limit >= size:
        told = "any amount of memory" if limit >= 1 << 62 else f"{limit:,} bytes"
        return ok("memlock", f"{told} may be pinned")
    if capable(sight, IPC_LOCK):
        return ok("memlock", f"the limit is {limit:,} bytes, and CAP_IPC_LOCK lifts it")
    return fault(
        "memlock",
        f"only {limit:,} bytes may be pinned, the pool has {size:,}",
        "ulimit -l unlimited, or for a container --cap-add=IPC_LOCK or --ulimit memlock=-1",
    )


def descriptors(limit: tuple[int, int] | None = None) -> Finding:
    """Whether enough can be open at once."""
    soft, hard = limit or resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= LEAST_FILES:
        return ok("open files", f"{soft:,} at once", of_host=True)
    raised = (
        f"ulimit -n {LEAST_FILES}" if hard >= LEAST_FILES or hard < 0 else "raise the hard limit"
    )
    return warning(
        "open files",
        f"{soft:,} descriptors at once; many peers and streams take more",
        f"{raised}, or for a container --ulimit nofile=65536",
        of_host=True,
    )


def shared_memory(sight: Sight, size: int | None = None) -> Finding:
    """Whether /dev/shm has room, for vendors that keep their queues there."""
    if size is None:
        try:
            there = os.statvfs(sight.root / "dev/shm")
        except OSError:
            return warning(
                "/dev/shm",
                "there is none",
                "mount a tmpfs there, or for a container --shm-size=1g or --ipc=host",
                of_host=True,
            )
        size = there.f_frsize * there.f_blocks
    if size >= LEAST_SHM:
        return ok("/dev/shm", f"{size:,} bytes", of_host=True)
    return warning(
        "/dev/shm",
        f"only {size:,} bytes",
        "for a container --shm-size=1g or --ipc=host",
        of_host=True,
    )


def reaching(sight: Sight, attempt: Callable[[], int] | None = None) -> Finding:
    """Whether one process may copy to and from another's memory (cross-memory attach).

    Args:
        attempt: tries it; the number of the error, which is EFAULT where it is allowed. By default it is tried on
            this host, and not on one whose files alone are here.
    """
    subject = "memory of other processes"
    text = sight.text("proc/sys/kernel/yama/ptrace_scope").strip()
    scope = int(text) if text.isdigit() else 0
    slower = "copies between processes (UCX's cma) may be refused, and large payloads within one host take a slower way"
    if scope >= 3 or (scope and not capable(sight, SYS_PTRACE)):
        way = "sysctl kernel.yama.ptrace_scope=0, or --cap-add=SYS_PTRACE for a container"
        if scope >= 3:
            way = "set kernel.yama.ptrace_scope=0 and start the host again: nothing else lifts 3"
        return warning(subject, f"kernel.yama.ptrace_scope is {scope}: {slower}", way, of_host=True)
    if attempt is None and sight.here:
        attempt = _reached
    error = errno.EFAULT if attempt is None else attempt()
    if error != errno.EFAULT:
        return warning(
            subject,
            f"the kernel refuses ({os.strerror(error)}): {slower}",
            "for a container --cap-add=SYS_PTRACE, or a seccomp profile that allows process_vm_readv",
            of_host=True,
        )
    lifted = f"ptrace_scope is {scope}, and CAP_SYS_PTRACE lifts it" if scope else "no ptrace_scope"
    return ok(subject, f"processes of one user may copy ({lifted})", of_host=True)


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _reached() -> int:
    """Ask for a byte that its parent cannot have."""
    libc = ctypes.CDLL(None, use_errno=True)
    byte = ctypes.create_string_buffer(1)
    here, there = _Piece(ctypes.addressof(byte), 1), _Piece(0, 1)
    libc.process_vm_readv(
        os.getppid(),
        ctypes.byref(here),
        ctypes.c_ulong(1),
        ctypes.byref(there),
        ctypes.c_ulong(1),
        ctypes.c_ulong(0),
    )
    return ctypes.get_errno()
