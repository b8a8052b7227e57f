"""``kv_transfer_params``: what a proxy, or the other instance, says about one transfer.

In: the object of a request, its id. Out: checked values, and which peer is meant.
Never: goes by a request's id, which each side changes; lets a request without ``transfer_id`` wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import ProtocolError, UsageError
from ..names import is_name, told
from .addresses import ZmqAddress
from .ports import port_of
from .request_ids import RequestId

Side = Literal["prefill", "decode"]

_MOST_BLOCKS = 1 << 24


@dataclass(frozen=True)
class Peer:
    """The other instance, and which of its replicas has this request."""

    address: ZmqAddress
    dp_rank: int = 0
    """Of the whole instance, over all of its hosts."""
    dp_size: int = 1
    tp_size: int = 1
    dp_size_local: int = 0
    """Replicas on each of :attr:`hosts`; 0 where there is one host."""
    hosts: tuple[str, ...] = ()

    def handshake_at(self, tp_rank: int) -> tuple[str, int]:
        """Where a rank of it answers.

        Raises:
            UsageError: it has no such rank.
        """
        host, dp_rank = self._place()
        return host, port_of(self.address.handshake, dp_rank, tp_rank, self.tp_size)

    def notify_at(self, tp_rank: int) -> tuple[str, int]:
        """Where a rank of it is told things.

        Raises:
            UsageError: it has no such rank.
        """
        host, dp_rank = self._place()
        return host, port_of(self.address.notify, dp_rank, tp_rank, self.tp_size)

    def _place(self) -> tuple[str, int]:
        """The host of its replica, and which one it is there."""
        if not self.dp_size_local:
            return self.address.host, self.dp_rank
        number, rank = divmod(self.dp_rank, self.dp_size_local)
        known = number < len(self.hosts)
        return self.hosts[number] if known else self.address.host, rank


@dataclass(frozen=True)
class TransferParams:
    """One side's part in one transfer."""

    transfer_id: str
    """The same on both sides, and the only thing that is."""
    side: Side
    """What the instance that got this is to do."""
    peer: Peer
    block_ids: tuple[int, ...] | None = None
    """The other side's, in the order of tokens; ``None`` where they are told later (WRITE)."""
    num_tokens: int | None = None
    """How many tokens these hold, where the other side tells."""
    engine_id: str | None = None

    @property
    def mode(self) -> Literal["read", "write"]:
        """(decode) Whether to read from blocks that are told here, or to have them written."""
        return "write" if self.block_ids is None else "read"


def parse_params(
    params: Mapping[str, Any] | None, request_id: str = "", *, own_tp_size: int = 1
) -> TransferParams | None:
    """What is to be done for a request.

    Args:
        params: ``kv_transfer_params`` of the request. Keys may be missing or null, numbers may be
            written as text.
        request_id: has both addresses in it where ``params`` has none.
        own_tp_size: what the peer's is where nobody tells.

    Returns:
        ``None`` for a request that is none of this: without params, or with both flags off.

    Raises:
        ProtocolError: the other side cannot be found or told from others; says what is missing.
    """
    if params is None:
        return None
    if not isinstance(params, Mapping):
        raise ProtocolError(f"kv_transfer_params has to be an object, not {told(params)}")
    given = _Given(params)
    prefills, decodes = given.flag("do_remote_decode"), given.flag("do_remote_prefill")
    transfer_id = given.name("transfer_id")
    if transfer_id is None:
        why = "" if prefills or decodes else "; the prefill instance has kept no cache for it"
        raise ProtocolError(
            "kv_transfer_params has no transfer_id, without which no two requests belong together"
            + why
        )
    if prefills and decodes:
        raise ProtocolError("kv_transfer_params asks for do_remote_decode and do_remote_prefill")
    if not prefills and not decodes:
        return None
    side: Side = "prefill" if prefills else "decode"
    tp_size = given.whole("remote_tp_size", 1) or given.whole("tp_size", 1) or own_tp_size
    dp_size = given.whole("remote_dp_size", 1) or 1
    dp_rank = given.whole("remote_dp_rank", 0) or 0
    pinned = given.whole("remote_dp_rank_override", 0)
    if pinned is not None:  # by whoever routes: it knows better than what was registered
        dp_rank, dp_size = pinned, max(dp_size, pinned + 1)
    peer = Peer(
        _address(given, request_id, side),
        dp_rank,
        dp_size,
        tp_size,
        given.whole("remote_dp_size_local", 0) or 0,
        given.hosts("remote_hosts"),
    )
    if peer.dp_rank >= peer.dp_size:
        raise ProtocolError(
            f"remote_dp_rank is {peer.dp_rank}, remote_dp_size {peer.dp_size}: there is no such rank"
        )
    for name, at in (("handshake", peer.handshake_at), ("notify", peer.notify_at)):
        try:
            at(tp_size - 1)
        except UsageError as error:
            raise ProtocolError(f"kv_transfer_params: {name}: {error}") from None
    return TransferParams(
        transfer_id,
        side,
        peer,
        given.blocks("remote_block_ids"),
        given.whole("remote_num_tokens", 0),
        given.text("remote_engine_id"),
    )


def prefilled_params(
    transfer_id: str,
    block_ids: Sequence[int],
    address: ZmqAddress,
    *,
    dp_rank: int = 0,
    dp_size: int = 1,
    tp_size: int = 1,
    num_tokens: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What a prefill instance answers in READ, and the decode instance is then told.

    Proxies hand on what they do not know. So the rank is in it, which decode cannot know otherwise.

    Args:
        block_ids: all of the request's, the one that is partly filled included.
        more: further keys.

    Raises:
        UsageError: there is nothing to be read.
    """
    if not transfer_id or not block_ids:
        raise UsageError("a cache that can be read has a transfer_id and at least one block")
    answer = {
        **more,
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": list(block_ids),
        "remote_engine_id": address.engine_id,
        "remote_host": address.host,
        "remote_handshake_port": address.handshake,
        "remote_notify_port": address.notify,
        "remote_dp_size": dp_size,
        "remote_dp_rank": dp_rank,
        "remote_tp_size": tp_size,
        "tp_size": tp_size,
        "transfer_id": transfer_id,
    }
    return answer if num_tokens is None else {**answer, "remote_num_tokens": num_tokens}


def _address(given: _Given, request_id: str, side: Side) -> ZmqAddress:
    host = given.text("remote_host")
    ports = [given.whole(f"remote_{name}_port", 1) for name in ("handshake", "notify")]
    if host is not None and ports[0] is not None and ports[1] is not None:
        try:
            return ZmqAddress(host, ports[0], ports[1])
        except UsageError as error:
            raise ProtocolError(f"kv_transfer_params: {error}") from None
    found = RequestId.find(request_id)
    if found is None:
        raise ProtocolError(
            "nobody tells where the other instance is: kv_transfer_params has no remote_host, "
            "remote_handshake_port and remote_notify_port, and request id "
            f"{request_id[:200]!r} carries no addresses"
        )
    return found.decode_address if side == "prefill" else found.prefill_address


class _Given:
    """Values as they may be: missing, null, or numbers as text."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def flag(self, key: str) -> bool:
        value = self._params.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self._wrong(key, "true or false")

    def text(self, key: str) -> str | None:
        value = self._params.get(key)
        if value is None or value == "":
            return None
        if isinstance(value, str):
            return value
        raise self._wrong(key, "text")

    def name(self, key: str) -> str | None:
        value = self.text(key)
        if value is None or is_name(value):
            return value
        raise self._wrong(key, "1 to 1,024 bytes of text")

    def whole(self, key: str, least: int) -> int | None:
        value = self._params.get(key)
        if value is None:
            return None
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if type(value) is not int or value < least:
            raise self._wrong(key, f"a whole number of at least {least}")
        return value

    def hosts(self, key: str) -> tuple[str, ...]:
        """None where it is something else: the peer's own address does then."""
        value = self._params.get(key)
        if isinstance(value, (list, tuple)) and all(isinstance(host, str) for host in value):
            return tuple(value)
        return ()

    def blocks(self, key: str) -> tuple[int, ...] | None:
        value = self._params.get(key)
        if value is None:
            return None
        if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]  # by group, where there is one group
        if not isinstance(value, (list, tuple)) or len(value) > _MOST_BLOCKS:
            raise self._wrong(key, "a list of numbers of blocks")
        if any(isinstance(block, list) for block in value):
            raise self._wrong(key, "the blocks of one group; several are not supported")
        if any(type(block) is not int or block < 0 for block in value):
            raise self._wrong(key, "a list of numbers of blocks")
        return tuple(value)

    def _wrong(self, key: str, wanted: str) -> ProtocolError:
        value = told(self._params.get(key))
        return ProtocolError(f"kv_transfer_params: {key} has to be {wanted}, not {value}")
