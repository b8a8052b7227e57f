"""The control plane: who is where, who belongs to whom, who is alive.

In: configuration, requests, what peers say. Out: addresses, checked params, registrations, answers.
Never: moves a byte of a cache.
"""

from __future__ import annotations

from .addresses import ZmqAddress, http_address
from .handshake import Answer, HandshakePort, ask_handshake, open_handshake_port
from .legs import new_transfer_id, read_leg, read_on, write_legs
from .metadata import AgentMetadata, OwnMetadata
from .notices import Notice, Released, RemoteBlocks, WriteDone, WriteFailed, packed, parse_notice
from .options import KVConfig, KVOptions, load_kv_config
from .params import Peer, Side, TransferParams, parse_params, prefilled_params
from .ports import clashes, offset_of, port_of
from .registered import Mode, Registered, Role
from .registration import FORGOTTEN, Registration
from .request_ids import RequestId, new_request_id

__all__ = [
    "FORGOTTEN",
    "AgentMetadata",
    "Answer",
    "HandshakePort",
    "KVConfig",
    "KVOptions",
    "Mode",
    "Notice",
    "OwnMetadata",
    "Peer",
    "Registered",
    "Registration",
    "Released",
    "RemoteBlocks",
    "RequestId",
    "Role",
    "Side",
    "TransferParams",
    "WriteDone",
    "WriteFailed",
    "ZmqAddress",
    "ask_handshake",
    "clashes",
    "http_address",
    "load_kv_config",
    "new_request_id",
    "new_transfer_id",
    "offset_of",
    "open_handshake_port",
    "packed",
    "parse_notice",
    "parse_params",
    "port_of",
    "prefilled_params",
    "read_leg",
    "read_on",
    "write_legs",
]
