"""Unix channels: words between two processes of one user on one host.

In: endpoints, addresses, limits. Out: listeners and dialers over Unix stream sockets.
Never: crosses hosts, lets another user's process in.

One socket connects a receiver with a sender; everything the two transports say goes over it in
order, and descriptors of memory travel beside the words that name them. Abstract names are used
unless ``socket_dir`` names a folder, for containers that share one but no network namespace.
"""

from __future__ import annotations

from ..abc import ChannelHandler, Channels
from ..model import Endpoint
from .framing import MAX_MESSAGE
from .messages import Hello
from .turned_line import LineOptions
from .unix_address import address_of
from .unix_bind import bind
from .unix_dialer import UnixDialer
from .unix_line import UnixLine
from .unix_listener import UnixListener

__all__ = ["UnixChannels", "UnixDialer", "UnixLine", "UnixListener"]


class UnixChannels(Channels):
    """Unix stream sockets.

    Args:
        socket_dir: folder of this user for socket files; abstract names without it.
        silent_after: seconds without a sign of life after which ``silent`` is told.
        peer_timeout: seconds after which it is told again.
        max_message: bytes of the largest word.
        handshake_timeout: seconds a peer may take for its first word.
    """

    def __init__(
        self,
        socket_dir: str | None = None,
        *,
        silent_after: float = 2.0,
        peer_timeout: float = 30.0,
        max_message: int = MAX_MESSAGE,
        handshake_timeout: float = 5.0,
    ) -> None:
        self._socket_dir = socket_dir
        self._options = LineOptions(silent_after, peer_timeout, max_message, handshake_timeout)

    def address_of(self, endpoint: Endpoint) -> str:
        """``unix:@omni-async/<user>/…`` or ``unix:<socket_dir>/….sock``.

        Raises:
            ConfigError: ``socket_dir`` is too long for a socket's path.
        """
        return address_of(endpoint, self._socket_dir)

    async def listen(
        self, endpoint: Endpoint, hello: Hello, handler: ChannelHandler
    ) -> UnixListener:
        """Bind the sender's address.

        Raises:
            UsageError: a living process listens there; names it and what to change.
            ConfigError: ``socket_dir`` cannot be used.

        Cancellation: safe; nothing is bound.
        """
        address = self.address_of(endpoint)
        sock = await bind(address, endpoint)
        return UnixListener(sock, address, hello, handler, self._options)

    def dial(self, address: str, hello: Hello, handler: ChannelHandler) -> UnixDialer:
        """Begin to keep a channel to ``address``.

        Raises:
            UsageError: not the address of a Unix socket.
        """
        return UnixDialer(address, hello, handler, self._options)
