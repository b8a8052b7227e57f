"""Every error the library raises, in one tree.

In: nothing. Out: exception classes that carry fields and survive pickling.
Never: imports anything but the standard library.

::

    OmniAsyncError                      .retryable
    ├── UsageError (ValueError)         wrong role, edge, loop or argument
    ├── ConfigError (ValueError)        a deploy file or an option is wrong      .path .mistakes
    ├── BackendUnavailable (ImportError) a package or a device is missing        .backend .remedy
    ├── ClosedError                     the transport is closed
    ├── TransferError                   .key .edge .backend .peer
    │   ├── KeyNotFound (KeyError)      not there, or no longer                  .expired
    │   ├── KeyExists                   claimed by a receiver, cannot be replaced
    │   ├── PayloadTooLarge             .nbytes .limit
    │   ├── PoolExhausted               no space before the deadline             .nbytes .limit
    │   ├── TransferTimeout (TimeoutError)                                       .phase .timeout
    │   ├── TransferCancelled           cleaned up or closed under the operation
    │   ├── PeerLost                    the other process is gone
    │   └── EngineFault                 the engine reported a failure            .status
    │       └── ServerUnreachable       the server of a store does not answer
    ├── ProtocolError                   the peer does not speak as agreed        .peer
    ├── CodecError                      .path
    │   ├── EncodeError                 a value cannot be sent
    │   └── DecodeError                 bytes are not a payload, or not here     .missing
    └── StreamError                     .key .edge
        ├── StreamAborted               .reason
        ├── StreamClosed
        ├── StreamEmpty
        ├── StreamStalled (TimeoutError)                                         .chunk .timeout
        ├── SequenceGap                 .expected .received
        └── BackPressure
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "BackPressure",
    "BackendUnavailable",
    "ClosedError",
    "CodecError",
    "ConfigError",
    "DecodeError",
    "EncodeError",
    "EngineFault",
    "KeyExists",
    "KeyNotFound",
    "OmniAsyncError",
    "PayloadTooLarge",
    "PeerLost",
    "PoolExhausted",
    "ProtocolError",
    "SequenceGap",
    "ServerUnreachable",
    "StreamAborted",
    "StreamClosed",
    "StreamEmpty",
    "StreamError",
    "StreamStalled",
    "TransferCancelled",
    "TransferError",
    "TransferTimeout",
    "UsageError",
]


def _restore(
    cls: type[OmniAsyncError], args: tuple[Any, ...], fields: dict[str, Any]
) -> OmniAsyncError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class OmniAsyncError(Exception):
    """Root of all errors. ``retryable`` says whether the same call may succeed later."""

    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def __str__(self) -> str:  # KeyError would show the repr, OSError would look for an errno
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))


class UsageError(OmniAsyncError, ValueError):
    """The call itself is wrong: role, edge, event loop, argument."""


class ConfigError(OmniAsyncError, ValueError):
    """A deploy file or a connector option is wrong. ``path`` is where in the file.

    A file with several mistakes is refused once: ``mistakes`` has each with path, text and line.
    """

    def __init__(
        self, message: str = "", *, path: str | None = None, mistakes: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(message)
        self.path = path
        self.mistakes = mistakes


class BackendUnavailable(OmniAsyncError, ImportError):
    """A backend cannot run here. ``remedy`` is a command or an action."""

    def __init__(
        self, message: str = "", *, backend: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message)
        self.backend = backend
        self.remedy = remedy


class ClosedError(OmniAsyncError):
    """The transport was closed."""


class TransferError(OmniAsyncError):
    """A put or get failed. Fields name the key, the edge, the backend and the peer."""

    def __init__(
        self,
        message: str = "",
        *,
        key: str | None = None,
        edge: tuple[str, str] | None = None,
        backend: str | None = None,
        peer: str | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.edge = edge
        self.backend = backend
        self.peer = peer


class KeyNotFound(TransferError, KeyError):
    """Nothing is on offer under the key. ``expired`` tells a payload nobody fetched in time."""

    retryable = True

    def __init__(self, message: str = "", *, expired: bool = False, **where: Any) -> None:
        super().__init__(message, **where)
        self.expired = expired


class KeyExists(TransferError):
    """The key is in use: a receiver has claimed the payload that was put before."""


class PayloadTooLarge(TransferError):
    """The payload can never fit. Sizes are bytes; ``setting`` is the option to raise."""

    def __init__(
        self,
        message: str = "",
        *,
        nbytes: int = 0,
        limit: int = 0,
        setting: str = "memory_pool_size",
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.nbytes = nbytes
        self.limit = limit
        self.setting = setting


class PoolExhausted(TransferError):
    """The pool stayed full until the deadline. Sizes are bytes."""

    retryable = True

    def __init__(self, message: str = "", *, nbytes: int = 0, limit: int = 0, **where: Any) -> None:
        super().__init__(message, **where)
        self.nbytes = nbytes
        self.limit = limit


class TransferTimeout(TransferError, TimeoutError):
    """The time limit passed. ``phase`` is what was waited for, ``timeout`` seconds."""

    retryable = True

    def __init__(
        self, message: str = "", *, phase: str = "", timeout: float | None = None, **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.phase = phase
        self.timeout = timeout


class TransferCancelled(TransferError):
    """The operation was ended by ``cleanup`` or by closing, not by its caller."""


class PeerLost(TransferError):
    """The other process went away after it had claimed or offered this payload."""

    retryable = True


class EngineFault(TransferError):
    """The engine reported a failure; ``status`` is its own code or word."""

    def __init__(self, message: str = "", *, status: int | str | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.status = status


class ServerUnreachable(EngineFault):
    """The server of a store does not answer, or is not there. It may come back."""

    retryable = True


class ProtocolError(OmniAsyncError):
    """A peer speaks another wire version or breaks the rules of this one."""

    def __init__(self, message: str = "", *, peer: str | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class CodecError(OmniAsyncError):
    """``path`` points inside the payload, such as ``value['meta'][3]``."""

    def __init__(self, message: str = "", *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path


class EncodeError(CodecError):
    """The value holds something that cannot be sent."""


class DecodeError(CodecError):
    """The bytes are not a payload of this library.

    ``missing`` names what this side lacks to read a sound payload: a registered type, or a package.
    Such a payload stays on offer; one that nobody can read does not.
    """

    def __init__(
        self, message: str = "", *, path: str | None = None, missing: str | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.missing = missing


class StreamError(OmniAsyncError):
    """A stream failed. Fields name the key and the edge."""

    def __init__(
        self, message: str = "", *, key: str | None = None, edge: tuple[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.edge = edge


class StreamAborted(StreamError):
    """The writer gave up; ``reason`` is its own text."""

    def __init__(self, message: str = "", *, reason: str = "", **where: Any) -> None:
        super().__init__(message, **where)
        self.reason = reason


class StreamClosed(StreamError):
    """The other end left the stream."""


class StreamEmpty(StreamError):
    """Nothing has arrived yet: read again later."""

    retryable = True


class StreamStalled(StreamError, TimeoutError):
    """``chunk`` did not come for ``timeout`` seconds, and the stream was given up for that."""

    def __init__(
        self, message: str = "", *, chunk: int = 0, timeout: float | None = None, **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.chunk = chunk
        self.timeout = timeout


class SequenceGap(StreamError):
    """A chunk is missing between ``expected`` and ``received``."""

    def __init__(
        self, message: str = "", *, expected: int = 0, received: int = 0, **where: Any
    ) -> None:
        super().__init__(message, **where)
        self.expected = expected
        self.received = received


class BackPressure(StreamError):
    """The bounded queue of a stream is full; wait or drop, the library does neither for you."""

    retryable = True
