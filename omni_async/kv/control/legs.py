"""Legs: the two requests that a proxy makes of one, for proxies of one's own.

In: what instances have registered. Out: ``kv_transfer_params`` of both requests.
Never: sends them.

In WRITE both go out at once. In READ the second one follows the first's answer, and carries it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from .registered import Registered

Params = dict[str, Any]


def new_transfer_id() -> str:
    return f"tx-{uuid.uuid4().hex}"


def write_legs(
    transfer_id: str,
    prefill: Registered,
    decode: Registered,
    *,
    prefill_dp_rank: int = 0,
    decode_dp_rank: int = 0,
) -> tuple[Params, Params]:
    """What both instances are told in WRITE: each about the other."""
    return (
        {**_prefills(transfer_id), **_about(decode, decode_dp_rank)},
        {**_decodes(transfer_id), **_about(prefill, prefill_dp_rank)},
    )


def read_leg(transfer_id: str, decode: Registered) -> Params:
    """What the prefill instance is told in READ."""
    return {**_prefills(transfer_id), "remote_dp_size": decode.dp_size}


def read_on(answer: Mapping[str, Any] | None, prefill: Registered) -> Params | None:
    """What the decode instance is told in READ: what prefill has answered.

    ``None`` where prefill has answered nothing.
    """
    return None if answer is None else {**answer, "remote_dp_size": prefill.dp_size}


def _prefills(transfer_id: str) -> Params:
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "transfer_id": transfer_id,
    }


def _decodes(transfer_id: str) -> Params:
    return {**_prefills(transfer_id), "do_remote_decode": False, "do_remote_prefill": True}


def _about(peer: Registered, dp_rank: int) -> Params:
    about: Params = {"remote_dp_size": peer.dp_size, "remote_tp_size": peer.tp_size}
    if peer.dp_size > 1:
        about["remote_dp_rank"] = dp_rank
    return about
