"""The vendor's agent, wrapped so that it cannot be misused.

In: addresses and lengths that were checked, peers' metadata. Out: writes and their ends, the vendor's errors as ours.
Never: asks about a write that has ended, frees a handle that is still active, imports the vendor before it is asked to.

The vendor's Python layer is left out: it starts the thread that answers peers such that it asks without a
pause, which takes a quarter to a whole core from a process that does nothing. Here that thread sleeps until
a socket wakes it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import uuid
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ...errors import BackendUnavailable, ConfigError, EngineFault
from ..environment import environment

NAME = "NixlConnector"
VARIANTS = ("nixl_cu12", "nixl_cu13", "nixl_rocm")
"""Packages that bring the library; ``nixl`` alone only chooses one of them, and imports PyTorch for it."""
WAKE = 10_000
"""Microseconds that the thread which answers peers sleeps at most; sockets wake it before."""

_QUIET = {"NIXL_LOG_LEVEL": "FATAL", "UCX_LOG_FILE": "stderr"}
"""Every failure of the library becomes an error here, so it need not be told twice; stdout is the caller's."""

_left: list[Any] = []
"""Agents of which a write could not be ended: they are never destroyed."""


def load() -> ModuleType:
    """The vendor's bindings.

    Raises:
        ImportError: no variant is installed, or a library that it needs is missing.
    """
    found = [name for name in VARIANTS if importlib.util.find_spec(name) is not None]
    with environment(_QUIET):
        return importlib.import_module(f"{found[0] if len(found) == 1 else 'nixl'}._bindings")


Place = tuple[int, int, int]
"""Memory as the vendor counts it: address, bytes, number of its device."""


class Places(NamedTuple):
    """Memory of one kind."""

    memory: str
    places: list[Place]


class Transfer:
    """A write under way; all calls come from one thread."""

    __slots__ = ("_agent", "_handle", "_status")

    def __init__(self, agent: Agent, handle: int) -> None:
        self._agent = agent
        self._handle = handle
        self._status: Any = None

    def post(self) -> None:
        """Begin it. Blocks for as long as it takes where the kernel copies between the processes.

        Raises:
            EngineFault: it did not begin, or has failed.
        """
        self._status = self._asked(self._agent.native.postXferReq, self._handle, b"")

    def ended(self) -> bool:
        """Whether the bytes are in place; moves some of them.

        Raises:
            EngineFault: it has failed.
        """
        if self._status != self._agent.done:
            self._status = self._asked(self._agent.native.getXferStatus, self._handle)
        if self._status != self._agent.done:
            return False
        self._agent.release(self._handle)
        return True

    def _asked(self, ask: Any, *args: Any) -> Any:
        try:
            return ask(*args)
        except self._agent.errors as error:
            self._agent.release(self._handle)
            raise fault("the write failed", error) from None


class Agent:
    """One agent of the vendor, with its plug-ins. Making one blocks for 30 ms, the first for half a second.

    Args:
        name: begins its name; what follows is nobody else's.
        plugins: the vendor's backends.
        threads: of its own for each plug-in that takes some.
        answers: whether peers write here, which takes a thread that answers them.

    Raises:
        BackendUnavailable: a plug-in does not start.
        ConfigError: there is no such plug-in.
    """

    def __init__(self, name: str, plugins: Sequence[str], threads: int, *, answers: bool) -> None:
        self._module = module = load()
        self.done = module.NIXL_SUCCESS
        self.errors = errors_of(module)
        config = module.nixlAgentConfig()
        config.useProgThread = answers
        config.useListenThread = False
        config.captureTelemetry = False
        config.syncMode = module.NIXL_THREAD_SYNC_STRICT
        config.pthrDelay = WAKE
        self.name = f"{name}-{uuid.uuid4().hex}"
        self._active: list[int] = []
        """Handles that could not be released yet."""
        with environment(_QUIET):
            self.native = module.nixlAgent(self.name, config)
            known = self.native.getAvailPlugins()
            for plugin in plugins:
                if plugin not in known:
                    raise ConfigError(
                        f"NIXL has no backend {plugin!r} here (there are: {', '.join(known)})",
                        path="backends",
                    )
                try:
                    self.native.createBackend(
                        plugin, {"num_threads": str(threads)} if threads else {}
                    )
                except self.errors as error:
                    raise BackendUnavailable(
                        f"{NAME}: the NIXL backend {plugin} does not start ({error})",
                        backend=NAME,
                        remedy="set NIXL_LOG_LEVEL=INFO and UCX_LOG_LEVEL=info to hear more; see UCX_TLS",
                    ) from None

    # memory

    def register(self, memory: str, place: Place) -> Any:
        """Make memory reachable, or fit to be written from; what :meth:`unregister` takes.

        Raises:
            EngineFault: the system refused to pin it.
        """
        registered = self._module.nixlRegDList(self._kind(memory))
        registered.addDesc((*place, b""))
        try:
            self.native.registerMem(registered, [])
        except self.errors as error:
            raise fault(f"cannot register {place[1]:,} bytes at {place[0]:#x}", error) from None
        return registered

    def unregister(self, registered: Any) -> None:
        """End what :meth:`register` began."""
        with contextlib.suppress(*self.errors):  # nothing can be done about it
            self.native.deregisterMem(registered, [])

    def metadata(self, registered: Any) -> bytes:
        """What a peer has to know to write there."""
        told: bytes = self.native.getLocalPartialMD(registered, False, [])
        return told

    def connection(self) -> bytes:
        """What a peer has to know to find this agent."""
        nothing = self._module.nixlRegDList(self._kind("DRAM"))
        told: bytes = self.native.getLocalPartialMD(nothing, True, [])
        return told

    # peers

    def learn(self, name: str, metadata: bytes) -> None:
        """Take in what a peer told.

        Raises:
            EngineFault: it is nonsense, of another agent, or of another version of the library.
        """
        try:
            told = self.native.loadRemoteMD(metadata)
        except self.errors as error:
            raise fault("the peer's metadata cannot be used", error) from None
        if bytes(told) != name.encode():
            raise EngineFault(
                f"the peer told metadata of {told!r}, not of its own",
                status="MISMATCH",
                backend=NAME,
            )

    def dial(self, name: str) -> None:
        """Begin to connect to a peer, so that the first write finds the way; waits for nothing."""
        with contextlib.suppress(
            *self.errors
        ):  # a plug-in need not, and a write tells what is wrong
            self.native.makeConnection(name, [])

    def forget(self, name: str) -> None:
        """Forget all that a peer told, and disconnect: writes to it end at once, with an error."""
        with contextlib.suppress(*self.errors):  # it was never known
            self.native.invalidateRemoteMD(name)

    def write(self, name: str, here: Places, there: Places) -> Transfer:
        """Prepare a write to a peer; one transfer, whatever the number of places.

        Args:
            here: where the bytes are.
            there: where they go, in the same order.

        Raises:
            EngineFault: the peer or the memory is not known.
        """
        ours, theirs = (
            self._module.nixlXferDList(self._kind(side.memory), side.places)
            for side in (here, there)
        )
        try:
            handle = self.native.createXferReq(self._module.NIXL_WRITE, ours, theirs, name, b"", [])
        except self.errors as error:
            raise fault("the write did not begin", error) from None
        return Transfer(self, handle)

    def release(self, handle: int) -> None:
        """Give a handle back; one that is still active is kept until it is not."""
        self._active.append(handle)
        self.tidy()

    def tidy(self) -> int:
        """Try again to release what could not be; how many handles are left."""
        left = []
        for handle in self._active:
            try:
                self.native.releaseXferReq(handle)
            except self.errors:
                left.append(handle)
        self._active = left
        return len(left)

    def destroy(self) -> None:
        """End the agent with its sockets and threads; blocks for 10 to 30 ms. Peers were forgotten before."""
        if self.tidy():
            _left.append(self.native)
        del self.native

    def _kind(self, memory: str) -> Any:
        return getattr(self._module, f"{memory}_SEG")


def errors_of(module: ModuleType) -> tuple[type[Exception], ...]:
    """Everything that the vendor raises."""
    return tuple(
        one
        for name, one in vars(module).items()
        if name.startswith("nixl") and isinstance(one, type) and issubclass(one, Exception)
    )


def fault(what: str, error: Exception) -> EngineFault:
    """The vendor's error as ours; ``status`` is its name, such as ``REMOTE_DISCONNECT``."""
    status = str(error).removeprefix("NIXL_ERR_") or type(error).__name__
    return EngineFault(f"{what} ({status})", status=status, backend=NAME)
