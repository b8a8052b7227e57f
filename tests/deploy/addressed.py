"""A connector whose receiver is told host and port, for tests: engine and words stay on this machine.

In: ``zmq_port``, ``sender_host``, ``sender_zmq_port`` as final values. Out: real transports.
Never: opens a network port. A "port" is a Unix socket of one namespace, so a second sender at the
same one is refused as the network would refuse it, and runs side by side never meet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from omni_async import registry
from omni_async.abc import (
    AddressedOptions,
    ChannelHandler,
    Channels,
    Dialer,
    DirectBackend,
    Engine,
    Listener,
    MemorySource,
    Options,
)
from omni_async.model import Capabilities, Endpoint, Role, Verb
from omni_async.pool.memory import AnonymousMemory
from omni_async.rendezvous.messages import Hello
from omni_async.rendezvous.turned_line import LineOptions
from omni_async.rendezvous.unix_bind import bind
from omni_async.rendezvous.unix_channel import UnixChannels, UnixListener
from omni_async.testing.doubles.loopback import LoopbackEngine


class AddressedDoubleOptions(AddressedOptions):
    """Nothing beyond the addresses."""


class PortChannels(Channels):
    """Unix sockets that are found by port."""

    def __init__(self, options: AddressedOptions) -> None:
        self._addresses = options
        self._unix = UnixChannels()

    def address_of(self, endpoint: Endpoint) -> str:
        return _socket(endpoint.namespace, self._addresses.sender_zmq_port)

    async def listen(self, endpoint: Endpoint, hello: Hello, handler: ChannelHandler) -> Listener:
        address = _socket(endpoint.namespace, self._addresses.zmq_port)
        sock = await bind(address, endpoint)
        listener = UnixListener(sock, address, hello, handler, LineOptions())
        listener.host, listener.port = self._addresses.host, self._addresses.zmq_port
        return listener

    def dial(self, address: str, hello: Hello, handler: ChannelHandler) -> Dialer:
        if address.startswith("tcp://"):  # what metadata and update_sender_info tell
            address = _socket(hello.namespace, int(address.rpartition(":")[2]))
        return self._unix.dial(address, hello, handler)


def _socket(namespace: str, port: int | None) -> str:
    return f"unix:@omni-async-port/{namespace[-60:]}/{port}"  # a socket's name has 107 bytes


class AddressedDouble(DirectBackend):
    name = "AddressedDouble"
    alias = "addressed"
    options = AddressedDoubleOptions

    def capabilities(self, options: Options) -> Capabilities:
        return Capabilities(backend=self.name, verb=Verb.READ, recall=False)

    def engine(self, options: Options, role: Role) -> Engine:
        return LoopbackEngine(Verb.READ)

    def memory(self, options: Options, role: Role) -> MemorySource:
        return AnonymousMemory()

    def channels(self, options: Options) -> Channels:
        assert isinstance(options, AddressedOptions)
        return PortChannels(options)


class OtherDouble(AddressedDouble):
    name = "OtherDouble"
    alias = "other"


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Both doubles are known by name."""
    doubles = (AddressedDouble(), OtherDouble())
    for double in doubles:
        registry.register_backend(double)
    try:
        yield
    finally:
        for double in doubles:
            for name in (double.name, double.alias):
                registry._loaded.pop(name)
