"""Who listens at a TCP port of this machine.

In: a port. Out: the process, as far as this one may look.
Never: connects to it, needs rights that this user has not.

``/proc/net/tcp`` tells the listening sockets of this network namespace by number; whose number it is
stands in the list of descriptors of each process, which is readable for processes of this user.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_LISTEN = "0A"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LONGEST = 120


class Holder(NamedTuple):
    pid: int
    """0 where it cannot be seen: another user's, or in another container."""
    uid: int
    command: str

    def __str__(self) -> str:
        if self.pid == os.getpid():
            return "this process"
        if not self.pid:
            return f"a process that cannot be seen from here, of user {self.uid}"
        return f"process {self.pid} ({self.command})"


def holder_of(port: int) -> Holder | None:
    """The process that listens there, on whichever address; ``None`` for nobody. Blocks a little."""
    found = _listening(port)
    if not found:
        return None
    inodes = {f"socket:[{inode}]" for inode, _ in found}
    for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc"))), key=_mine_first):
        if _has(pid, inodes):
            return Holder(pid, found[0][1], _command(pid))
    return Holder(0, found[0][1], "")


def _mine_first(pid: int) -> tuple[bool, int]:
    return pid != os.getpid(), pid


def _listening(port: int) -> list[tuple[str, int]]:
    """Number and user of the sockets that listen at a port."""
    found = []
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:  # no IPv6 here, or no /proc
            continue
        for row in rows:
            if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port:
                found.append((row[9], int(row[7])))
    return found


def _has(pid: int, links: set[str]) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return False
    for number in numbers:
        try:
            if os.readlink(f"{folder}/{number}") in links:
                return True
        except OSError:
            continue
    return False


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).rstrip(b"\0").split(b"\0")
    except OSError:
        words = []
    text = b" ".join(words).decode(errors="replace") or "its command is not known"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
