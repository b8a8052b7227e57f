"""How much memory this process may use, and whether a pool's limit fits into it.

In: what the system tells: physical memory, cgroup limits of every level, address space. Out: bytes.
Never: believes that a limit above it would end in an error; it would end in a kill.
"""

from __future__ import annotations

import os
import posixpath
import resource
from collections.abc import Callable, Iterator

from ..errors import ConfigError

__all__ = ["DEFAULT_CEILING", "checked_limit", "memory_allowance"]

DEFAULT_CEILING = 4 << 30
"""Bytes; the default limit of a pool is a quarter of the allowance, and this at most."""

Reader = Callable[[str], str]
"""Text of a file; ``OSError`` when it is not there."""


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def memory_allowance(read: Reader = _read) -> int:
    """Bytes this process may use: the least of physical memory, cgroup limits and ``ulimit -v``.

    What others use at the moment is not subtracted: a limit that was right at one start
    would otherwise be refused at the next.
    """
    bounds = [_physical(read), *_cgroup_limits(read)]
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        bounds.append(address_space)
    return min(bounds)


def checked_limit(
    requested: int | None,
    *,
    allowance: int | None = None,
    setting: str = "memory_pool_size",
    device: str = "cpu",
) -> int:
    """Limit of a pool in bytes; ``None`` asks for the default. A device has limits of its own.

    Raises:
        ConfigError: more was requested than the process may use; names both numbers.
    """
    if allowance is None:
        allowance = memory_allowance()
    if requested is None:
        return min(allowance // 4, DEFAULT_CEILING)
    if requested <= 0:
        raise ConfigError(f"{setting} is {requested:,} bytes; it must be at least 1", path=setting)
    if requested > allowance and device == "cpu":
        raise ConfigError(
            f"{setting} is {requested:,} bytes, but this process may use only {allowance:,} bytes "
            "(physical memory, cgroup limits and ulimit -v); lower it or raise that limit",
            path=setting,
        )
    return requested


def _physical(read: Reader) -> int:
    try:
        for line in read("/proc/meminfo").splitlines():
            name, _, amount = line.partition(":")
            if name == "MemTotal":
                return int(amount.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # a sandbox without /proc: the library call below knows as well
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits(read: Reader) -> Iterator[int]:
    """Limits of this process's memory cgroup and of all its parents that can be seen from here."""
    try:
        own = read("/proc/self/cgroup").splitlines()
        mounts = read("/proc/self/mountinfo").splitlines()
    except OSError:
        return
    paths = {}
    for line in own:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in paths:
            continue
        if kind[0] == "cgroup" and "memory" not in kind[2].split(","):
            continue
        name = "memory.max" if kind[0] == "cgroup2" else "memory.limit_in_bytes"
        yield from _limits_upwards(read, name, fields[3], fields[4], paths[kind[0]])


def _limits_upwards(read: Reader, name: str, root: str, mount: str, path: str) -> Iterator[int]:
    relative = posixpath.relpath(path, root)
    if relative == ".." or relative.startswith("../"):
        relative = "."  # the mount shows another part of the tree; its top is all we can ask
    while True:
        try:
            text = read(posixpath.normpath(posixpath.join(mount, relative, name))).strip()
        except OSError:
            text = "max"  # not every level has the file: the root never does
        if text.isdigit():
            yield int(text)
        if relative == ".":
            return
        relative = posixpath.dirname(relative) or "."
