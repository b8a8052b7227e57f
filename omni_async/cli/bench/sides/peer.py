"""The peer's connector as a contender, called as its own documentation does, blocking.

In: batches asked for on the control line. Out: when each call began and each value was usable.
Never: touches the peer's insides.

Modes: ``handed`` carries put's metadata to the consumer over a Unix socket, its fastest way;
``polled`` asks for the key every millisecond, as its chunk adapter does.
"""

from __future__ import annotations

import socket
import time
from time import perf_counter_ns as now
from typing import Any

from ..line import Line
from ..payload import check, hidden_states, stamp, touch, value
from ..peer import connector, find

POLL = 0.001
"""Seconds between two questions, the back-off of the peer's adapter."""


def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve batches until the line closes."""
    import torch

    torch.set_num_threads(1)
    producer = job["role"] == "producer"
    side = connector(find(job["peer"]))({"stage_id": 0 if producer else 1})
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
        payload = value(source)
        start = now()
        done, _, metadata = side.put("0", "1", f"{batch['name']}-{index}", payload)
        end = now()
        if not done:
            raise RuntimeError(f"the peer's put of {batch['name']}-{index} failed")
        if batch["mode"] == "handed":
            friend.send(metadata)
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
        if batch["mode"] == "handed":
            result = side.get("0", "1", key, friend.receive())
        else:
            while (result := side.get("0", "1", key)) is None:
                time.sleep(POLL)
        received = result[0]
        end = now()
        touch(received)
        usable.append(end)
        touched.append(now() - end)
        check(received, reference, index, whole=index in (0, total - 1))
        del received, result
        friend.send(None)
    return {"usable": usable, "touch": touched}
