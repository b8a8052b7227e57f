"""What backends share whose receivers are told where the sender listens.

In: options. Out: ZMQ channels, one address for words and engine.
Never: knows a vendor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from .._aio.executor import OwnedExecutor
from ..abc import Channels, DirectBackend, Options, RemoteRegion
from ..abc.options import AddressedOptions
from ..errors import EngineFault, ProtocolError
from ..model import Move, Region
from ..rendezvous.zmq_hosts import local_places

C = TypeVar("C")

_ADDRESSES = 1 << 64


class Contacts(Generic[C]):
    """What an engine has for each peer, for as long as there is a line to it.

    A new line may come up before the end of the old one was noticed: the peer is the same then.
    """

    def __init__(self) -> None:
        self._contacts: dict[str, C] = {}
        self._lines: Counter[str] = Counter()

    def __iter__(self) -> Iterator[C]:
        return iter(self._contacts.values())

    def __len__(self) -> int:
        return len(self._contacts)

    def __getitem__(self, peer: str) -> C:
        return self._contacts[peer]

    def get(self, peer: str) -> C | None:
        return self._contacts.get(peer)

    def meet(self, peer: str, make: Callable[[], C]) -> None:
        """A line has come up; ``make`` is called for the first one."""
        if peer not in self._contacts:
            self._contacts[peer] = make()
        self._lines[peer] += 1

    def part(self, peer: str) -> C | None:
        """A line has ended; what there was for the peer, if that was the last one."""
        self._lines[peer] -= 1
        if self._lines[peer] > 0:
            return None
        del self._lines[peer]
        return self._contacts.pop(peer, None)

    def clear(self) -> None:
        self._contacts.clear()
        self._lines.clear()


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


def check_region(peer: str, region: Region) -> None:
    """Raise for what a peer told where no region can be.

    Raises:
        ProtocolError: no process has such addresses.
    """
    if not 0 < region.address <= _ADDRESSES - region.nbytes or region.nbytes <= 0:
        raise ProtocolError(
            f"a region of {region.nbytes} bytes at {region.address:#x} cannot be", peer=peer
        )


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
    here = [(one.address, one.address + one.nbytes) for one in own]
    begin, end = here[0] if here else (0, 0)
    known, limit = -1, 0
    for move in moves:  # a cache has thousands of them, mostly between the same two regions
        local, region, offset, nbytes = move
        if region != known:
            remote = regions.get(region)
            if remote is None:
                raise EngineFault(
                    f"the peer has no region {region}", status="unknown region", backend=backend
                )
            known, limit = region, remote.nbytes
        if nbytes < 0 or not 0 <= offset <= limit - nbytes:
            raise EngineFault(
                f"{move} leaves the peer's region", status="out of bounds", backend=backend
            )
        if not begin <= local <= end - nbytes:
            for begin, end in here:
                if begin <= local <= end - nbytes:
                    break
            else:
                raise EngineFault(
                    f"{move} leaves the memory registered here",
                    status="not registered",
                    backend=backend,
                )
