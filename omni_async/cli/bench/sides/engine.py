"""The floor over Mooncake: its engine alone, one write from warm memory to warm memory.

In: batches asked for on the control line. Out: when each write began and was known to have ended.
Never: does what a transport must (keys, a pool, words, clean-up); it shows what the engine itself takes.

The producer submits a write and looks at its status between short sleeps, which is faster than the engine's
own blocking call where cores are few. Its status says *done* once the target has placed the bytes.
"""

from __future__ import annotations

import socket
import time
from time import perf_counter_ns as now
from typing import Any

import numpy as np

from ...on_this_host import LOOPBACK
from ..line import Line
from ..payload import check, hidden_states, stamp, touch
from ..workers import WorkerFailed

NAP = 20e-6
"""Seconds between two looks at a status."""
RUNNING, DONE = 0, 1


def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve batches until the line closes."""
    import torch
    from mooncake.engine import TransferEngine  # type: ignore[import-untyped]

    torch.set_num_threads(1)
    engine = TransferEngine()
    _expect(engine.initialize(LOOPBACK, "P2PHANDSHAKE", "tcp", ""), 0)
    friend = Line(friends[0])
    line.send({"ready": True})
    while True:
        batch = line.receive()
        memory = np.zeros(batch["nbytes"], np.uint8)
        _expect(engine.register_memory(memory.ctypes.data, memory.nbytes), 0)
        serve = produce if job["role"] == "producer" else consume
        line.send(serve(engine, friend, memory, batch))
        _expect(engine.unregister_memory(memory.ctypes.data), 0)


def produce(engine: Any, friend: Line, memory: Any, batch: dict[str, Any]) -> dict[str, Any]:
    import torch

    source = hidden_states(batch["nbytes"])
    torch.from_numpy(memory).copy_(source.reshape(-1).view(torch.uint8))
    session, target = friend.receive()
    begun, put = [], []
    for index in range(batch["warmup"] + batch["count"]):
        stamp(torch.from_numpy(memory).view(torch.bfloat16).reshape(source.shape), index)
        start = now()
        handle = engine.transfer_submit_write(session, memory.ctypes.data, target, memory.nbytes)
        if handle in (0, (1 << 64) - 1):
            raise WorkerFailed("the engine took no write")
        while (status := engine.transfer_check_status(handle)) == RUNNING:
            time.sleep(NAP)
        end = now()
        _expect(status, DONE)
        friend.send(end)
        begun.append(start)
        put.append(end - start)
        friend.receive()
    return {"begun": begun, "put": put}


def consume(engine: Any, friend: Line, memory: Any, batch: dict[str, Any]) -> dict[str, Any]:
    import torch

    reference = hidden_states(batch["nbytes"])
    total = batch["warmup"] + batch["count"]
    received = torch.from_numpy(memory).view(torch.bfloat16).reshape(reference.shape)
    usable, touched = [], []
    friend.send([f"{LOOPBACK}:{engine.get_rpc_port()}", memory.ctypes.data])
    for index in range(total):
        usable.append(friend.receive())  # one clock for both processes
        start = now()
        touch(received)
        touched.append(now() - start)
        check(received, reference, index, whole=index in (0, total - 1))
        friend.send(None)
    return {"usable": usable, "touch": touched}


def _expect(code: int, wanted: int) -> None:
    if code != wanted:
        raise WorkerFailed(f"the engine answered {code}, not {wanted}")
