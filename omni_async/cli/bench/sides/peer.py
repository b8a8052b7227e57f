"""The peer's connector as a contender, called as its own documentation does, blocking.

In: batches asked for on the control line. Out: when each call began and each value was usable.
Never: touches the peer's insides.

Modes: ``handed`` carries put's metadata to the consumer over a Unix socket, its fastest way; ``tensor`` does the
same with a tensor as the whole value; ``polled`` asks for the key every millisecond, as its chunk adapter does;
``waits`` calls get 5 ms before the put begins, and lets it wait as it does by itself.

Its connectors to stores never delete anything. What was fetched is deleted here by their own client, outside of
the times: a store that fills up would slow them down.
"""

from __future__ import annotations

import socket
import time
from base64 import b64decode, b64encode
from time import perf_counter_ns as now
from typing import Any

import msgspec

from ....model import Role
from ..line import Line
from ..payload import check, hidden_states, stamp, touch, value
from ..peer import connector, extra_of, find
from ..peer_vendors import MOONCAKE_STORE, YUANRONG

POOL = 1 << 30
"""Bytes of its pool, the default; touched before anything is measured, as ours is by its warm-up."""
POLL = 0.001
"""Seconds between two questions, the back-off of the peer's adapter."""
HEAD_START = 0.005
"""Seconds by which a get begins before its put."""


def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve batches until the line closes."""
    import torch

    torch.set_num_threads(1)
    producer = job["role"] == "producer"
    name = job["connector"]
    role: Role = "sender" if producer else "receiver"
    extra = job["extra"][role] if "extra" in job else extra_of(name, role, job["port"], POOL)
    side = connector(find(job["peer"]), name)({"stage_id": 0 if producer else 1, **extra})
    if hasattr(side, "pool"):
        side.pool.zero_()
    friend = Line(friends[0])
    line.send({"ready": True})
    while True:
        batch = line.receive()
        line.send((produce if producer else consume)(side, friend, batch))


def produce(side: Any, friend: Line, batch: dict[str, Any]) -> dict[str, Any]:
    source = hidden_states(batch["nbytes"])
    begun, put = [], []
    for index in range(batch["warmup"] + batch["count"]):
        stamp(source, index)
        payload = source if batch["mode"] == "tensor" else value(source)
        if batch["mode"] == "waits":
            friend.receive()
            time.sleep(HEAD_START)
        start = now()
        done, _, metadata = side.put("0", "1", f"{batch['name']}-{index}", payload)
        end = now()
        if not done:
            raise RuntimeError(f"the peer's put of {batch['name']}-{index} failed")
        if batch["mode"] not in ("polled", "waits"):
            friend.send(b64encode(msgspec.msgpack.encode(metadata)).decode())
        begun.append(start)
        put.append(end - start)
        friend.receive()
    return {"begun": begun, "put": put}


def consume(side: Any, friend: Line, batch: dict[str, Any]) -> dict[str, Any]:
    reference = hidden_states(batch["nbytes"])
    total = batch["warmup"] + batch["count"]
    usable, touched = [], []
    for index in range(total):
        key = f"{batch['name']}-{index}"
        if batch["mode"] == "waits":
            friend.send(None)
            result = side.get("0", "1", key)
        elif batch["mode"] != "polled":
            metadata = msgspec.msgpack.decode(b64decode(friend.receive()))
            result = side.get("0", "1", key, metadata)
        else:
            while (result := side.get("0", "1", key)) is None:
                time.sleep(POLL)
        received = result[0]
        end = now()
        buffer = None
        if not isinstance(received, dict) and hasattr(received, "release"):
            buffer, received = received, received.tensor
        touch(received)
        usable.append(end)
        touched.append(now() - end)
        check(received, reference, index, whole=index in (0, total - 1))
        del received, result
        if buffer is not None:
            buffer.release()
        delete(side, key)
        friend.send(None)
    return {"usable": usable, "touch": touched}


def delete(side: Any, key: str) -> None:
    """What its connector to a store leaves there."""
    if type(side).__name__ == MOONCAKE_STORE:
        side.store.remove(side._make_key(key, "0", "1"), True)
    elif type(side).__name__ == YUANRONG:
        side.client.delete([side._make_key(key, "0", "1")])
