"""Unix peer: who sits at the other end of a Unix socket, as the kernel says.

In: a connected socket. Out: process and user, or ``ProtocolError`` for another user's process.
Never: believes what the peer says of itself, sends anything.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from .handshake import Disagreement

_UCRED = struct.Struct("3i")


class Peer(NamedTuple):
    """Taken when the peer connected or began to listen."""

    pid: int
    """0 when its process is not visible from this container."""
    uid: int

    def __str__(self) -> str:
        return f"process {self.pid}" if self.pid else "a process of another container"


def peer_of(sock: socket.socket) -> Peer:
    """The process at the other end."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return Peer(pid, uid)


def same_user(sock: socket.socket, address: str) -> Peer:
    """The process at the other end, which must be of this user.

    Raises:
        ProtocolError: it is another user's; names both.
    """
    peer = peer_of(sock)
    mine = os.geteuid()
    if peer.uid != mine:
        raise Disagreement(
            f"{address}: {peer} belongs to user {peer.uid}, this process to user {mine}; "
            f"only processes of one user share memory",
            peer=str(peer),
        )
    return peer
