"""CURVE keys of side channels, from texts and from files.

In: what was configured: keys, or names of files. Out: keys that an end of a line needs.
Never: reads a secret that others may read, shows a secret in a text.

A key is 40 characters (Z85). A file holds one, or what ``zmq.auth`` writes; a file of allowed clients
holds one on each line.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from typing import NamedTuple

import zmq
import zmq.utils.z85

from ..errors import ConfigError

_LENGTH = 40
_LARGEST = 64 << 10
_PATH = re.compile(r"[\w./~ -]+")
"""What a key hardly ever looks like."""
_CERTIFICATE = re.compile(r'^\s*(public|secret)-key\s*=\s*"([^"]*)"', re.MULTILINE)


class SenderKeys(NamedTuple):
    secret: bytes
    allowed: frozenset[bytes]
    """Public keys of receivers, as 32 bytes."""

    def guard(self, router: zmq.Socket[bytes]) -> None:
        """Let nobody in without a key."""
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, self.secret)


class ReceiverKeys(NamedTuple):
    server: bytes
    public: bytes
    secret: bytes

    def unlock(self, dealer: zmq.Socket[bytes]) -> None:
        """Show the key, to that sender only."""
        dealer.set(zmq.CURVE_SERVERKEY, self.server)
        dealer.set(zmq.CURVE_PUBLICKEY, self.public)
        dealer.set(zmq.CURVE_SECRETKEY, self.secret)


class Curve:
    """What was configured; each end reads what it needs, when it needs it.

    Args:
        server_secret_key: (sender) its own.
        allowed_clients: (sender) public keys of the receivers it serves.
        server_public_key: (receiver) the sender's.
        client_secret_key: (receiver) its own.
    """

    def __init__(
        self,
        *,
        server_secret_key: str | None = None,
        allowed_clients: Sequence[str] = (),
        server_public_key: str | None = None,
        client_secret_key: str | None = None,
    ) -> None:
        self._server_secret = server_secret_key
        self._allowed = tuple(allowed_clients)
        self._server_public = server_public_key
        self._client_secret = client_secret_key

    def for_sender(self) -> SenderKeys:
        """Raises: ConfigError: a key is missing, is none, or may be read by others."""
        secret = _secret(self._server_secret, "server_secret_key")
        if not self._allowed:
            raise _missing("allowed_clients")
        allowed: set[bytes] = set()
        for at, text in enumerate(self._allowed):
            path = f"curve.allowed_clients[{at}]"
            if is_key(text):
                allowed.add(decoded(text, path))
            else:
                lines = _content(text, path, secret=False)
                keys = _listed(lines, path)
                allowed.update(decoded(key, path) for key in keys)
        return SenderKeys(secret, frozenset(allowed))

    def for_receiver(self) -> ReceiverKeys:
        """Raises: ConfigError: a key is missing, is none, or may be read by others."""
        secret = _secret(self._client_secret, "client_secret_key")
        path = "curve.server_public_key"
        text = self._server_public
        if text is None:
            raise _missing("server_public_key")
        if not is_key(text):
            text = _one(_content(text, path, secret=False), "public", path)
        decoded(text, path)
        return ReceiverKeys(text.encode(), zmq.curve_public(secret), secret)


def is_key(text: str) -> bool:
    """Whether a text is a key itself; else it is the name of a file."""
    if len(text) != _LENGTH or (text.startswith("/") and os.path.exists(text)):
        return False
    try:
        zmq.utils.z85.decode(text)
    except (ValueError, KeyError):
        return False
    return True


def decoded(key: str, path: str) -> bytes:
    """The 32 bytes of a key.

    Raises:
        ConfigError: it is none.
    """
    if not is_key(key):
        raise ConfigError(f"{path}: a key has {_LENGTH} characters of Z85, this is none", path=path)
    return bytes(zmq.utils.z85.decode(key))


def _secret(text: str | None, name: str) -> bytes:
    path = f"curve.{name}"
    if text is None:
        raise _missing(name)
    if not is_key(text):
        text = _one(_content(text, path, secret=True), "secret", path)
    decoded(text, path)
    return text.encode()


def _missing(name: str) -> ConfigError:
    end = "receivers" if name in ("server_public_key", "client_secret_key") else "senders"
    return ConfigError(f"curve.{name} is missing, which {end} need", path=f"curve.{name}")


def _content(name: str, path: str, *, secret: bool) -> str:
    try:
        with open(os.path.expanduser(name), encoding="ascii") as file:
            facts = os.fstat(file.fileno())
            if secret and facts.st_mode & 0o077:
                mode = stat.S_IMODE(facts.st_mode)
                raise ConfigError(
                    f"{path}: others may read {name!r} (mode {mode:o}); chmod 600 it", path=path
                )
            if secret and facts.st_uid not in (0, os.geteuid()):
                raise ConfigError(
                    f"{path}: {name!r} belongs to user {facts.st_uid}, this process to user "
                    f"{os.geteuid()}",
                    path=path,
                )
            return file.read(_LARGEST)
    except OSError as error:
        # It may be a key with a mistake in it: what is secret is not to stand in a log.
        shown = repr(name) if _PATH.fullmatch(name) else "what stands there"
        raise ConfigError(
            f"{path}: {shown} is neither a key of {_LENGTH} characters nor a file that can be read: "
            f"{os.strerror(error.errno or 0)}",
            path=path,
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: {name!r} is no file of keys", path=path) from None


def _one(content: str, kind: str, path: str) -> str:
    certificate = dict(_CERTIFICATE.findall(content))
    if certificate:
        if kind not in certificate:
            raise ConfigError(f"{path}: that file has no {kind} key", path=path)
        return str(certificate[kind])
    return content.strip()


def _listed(content: str, path: str) -> list[str]:
    certificate = dict(_CERTIFICATE.findall(content))
    if certificate:
        return [_one(content, "public", path)]
    first = [line.split(maxsplit=1)[0] for line in content.splitlines() if line.strip()]
    # A key may begin like a comment; a comment does not happen to be 40 characters without a space.
    return [word for word in first if len(word) == _LENGTH or not word.startswith("#")]
