"""Backend: what one vendor's folder offers to the hall.

In: validated options. Out: the parts a transport is wired from.
Never: wires them itself, imports the vendor before it is asked for a part.
"""

from __future__ import annotations

import abc

from ..errors import BackendUnavailable, ConfigError
from ..model import Capabilities, Role, Verb
from .channel import Channels
from .engine import Engine
from .findings import Finding, Sight, of_error, ok
from .memory import MemorySource
from .options import Options
from .store import Store


class Backend(abc.ABC):
    """What every backend says of itself."""

    name: str
    """Connector name in a deploy YAML, such as ``SharedMemoryConnector``."""
    alias: str
    options: type[Options]

    @abc.abstractmethod
    def capabilities(self, options: Options) -> Capabilities:
        """Facts that hold for these options."""

    def facing(self, options: Options) -> tuple[Backend, Options]:
        """Who serves an edge with these options, and by which of its own: another backend where the other end
        is not one of ours and meets nobody in the way that this one does."""
        return self, options

    async def prepare(self, options: Options, role: Role) -> Options:
        """Whatever takes long before the parts are asked for; the options with which to ask for them.

        What can be found out once and is used by several parts (an address of this host) is found
        out here.

        Raises:
            BackendUnavailable: a package, library or device is missing; says how to get it.
            ConfigError: the options do not fit this machine.

        Cancellation: safe.
        """
        return options

    async def examine(self, options: Options, role: Role, sight: Sight) -> list[Finding]:
        """What this machine has of all that a transport with these options needs: what ``omni-async doctor``
        asks, in a process that does nothing else and ends afterwards.

        By default the verdict of :meth:`prepare`. A backend that can tell more tells it here, and raises for
        nothing that it finds.

        Cancellation: unknown; the process is about to end.
        """
        try:
            await self.prepare(options, role)
        except (BackendUnavailable, ConfigError) as error:
            return [of_error(error)]
        return [ok("opening", f"all that a {role} needs is here")]


class DirectBackend(Backend):
    """A backend with an engine between two processes and a channel for words."""

    @abc.abstractmethod
    def engine(self, options: Options, role: Role) -> Engine:
        """The engine of one transport.

        Raises:
            BackendUnavailable: a package, library or device is missing; says how to get it.
        """

    @abc.abstractmethod
    def memory(self, options: Options, role: Role) -> MemorySource:
        """Where the pool's segments come from."""

    @abc.abstractmethod
    def channels(self, options: Options) -> Channels:
        """How words travel."""


class StoreBackend(Backend):
    """A backend whose two ends meet at a server that keeps bytes under keys; its options are
    :class:`StoreOptions`."""

    def capabilities(self, options: Options) -> Capabilities:
        """What holds for every store: it wakes nobody, and knows neither who reads nor who has left."""
        return Capabilities(
            backend=self.name,
            verb=Verb.STORE,
            cross_host=True,
            notifies=False,
            exclusive=False,
            credit=False,
            recall=False,
        )

    @abc.abstractmethod
    async def store(self, options: Options, role: Role) -> Store:
        """A client of the server, connected.

        Raises:
            BackendUnavailable: a package is missing, or nobody answers within ``setup_timeout``; says what to do.

        Cancellation: safe; what was begun is ended in the background.
        """

    @abc.abstractmethod
    def memory(self, options: Options, role: Role) -> MemorySource:
        """Where the pool's segments come from."""
