"""The loopback engine with words over ZMQ: what a connector between hosts is, without a network's engine.

In: addresses as of any connector whose receiver is told host and port. Out: bytes really moved; faults as ordered.
Never: leaves loopback.
"""

from __future__ import annotations

from ...abc import AddressedOptions, Channels, Options, Revoke
from ...model import Verb
from .loopback import LoopbackBackend


class LoopbackZmqOptions(AddressedOptions):
    """Small payloads go through the engine too, by default."""

    host: str = "127.0.0.1"
    inline_limit: int = 256


class LoopbackZmq(LoopbackBackend):
    """The sender writes into the receiver's memory, as over a socket: pages can be taken away from it."""

    name = "LoopbackZmqDouble"
    alias = "loopback-zmq"
    verb = Verb.WRITE
    revoke = Revoke.PAGES
    options = LoopbackZmqOptions

    def channels(self, options: Options) -> Channels:
        from ...rendezvous.zmq_channel import ZmqChannels

        assert isinstance(options, LoopbackZmqOptions)
        return ZmqChannels(
            host=options.host,
            port=options.zmq_port,
            sender_host=options.sender_host,
            sender_port=options.sender_zmq_port,
            peer_timeout=options.peer_timeout,
            curve=options.curve_keys,
        )
