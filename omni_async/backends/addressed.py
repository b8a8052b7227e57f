"""What backends share whose receivers are told where the sender listens.

In: options. Out: ZMQ channels, one address for words and engine.
Never: knows a vendor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._aio.executor import OwnedExecutor
from ..abc import Channels, DirectBackend, Options, RemoteRegion
from ..abc.options import AddressedOptions
from ..errors import EngineFault
from ..model import Move, Region
from ..rendezvous.zmq_hosts import local_places


class AddressedBackend(DirectBackend):
    """A direct backend whose words go over ZMQ."""

    def channels(self, options: Options) -> Channels:
        from ..rendezvous.zmq_channel import ZmqChannels  # zmq is not loaded for options alone

        assert isinstance(options, AddressedOptions)
        return ZmqChannels(
            host=options.host,
            port=options.zmq_port,
            sender_host=options.sender_host,
            sender_port=options.sender_zmq_port,
            peer_timeout=options.peer_timeout,
            curve=options.curve_keys,
        )


async def host_of(options: AddressedOptions, executor: OwnedExecutor) -> str:
    """The address of this host that its peers are told.

    Raises:
        ConfigError: ``host`` is not of this machine.

    Cancellation: safe.
    """
    return (await local_places(options.host, 0, executor))[0].host


def check_moves(
    moves: Sequence[Move],
    regions: dict[int, RemoteRegion],
    own: Iterable[Region],
    backend: str,
) -> None:
    """Raise for a move that leaves the peer's region or what is registered here.

    Vendors differ in what they check: some nothing, others make a good write pay for a bad one.

    Raises:
        EngineFault: ``status`` is ``unknown region``, ``out of bounds`` or ``not registered``.
    """
    here = list(own)
    for move in moves:
        remote = regions.get(move.region)
        if remote is None:
            raise EngineFault(
                f"the peer has no region {move.region}", status="unknown region", backend=backend
            )
        if move.nbytes < 0 or not 0 <= move.offset <= remote.nbytes - move.nbytes:
            raise EngineFault(
                f"{move} leaves the peer's region", status="out of bounds", backend=backend
            )
        if not any(
            one.address <= move.local <= one.address + one.nbytes - move.nbytes for one in here
        ):
            raise EngineFault(
                f"{move} leaves the memory registered here",
                status="not registered",
                backend=backend,
            )
