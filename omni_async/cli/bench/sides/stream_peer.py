"""The peer's chunk adapter as a contender, driven as its own scheduler does.

In: steps asked for on the control line. Out: when each call began and each chunk was usable, CPU time.
Never: changes the adapter; it is watched where its scheduler looks, at the set of requests that are ready.
"""

from __future__ import annotations

import importlib
import queue
import socket
import time
import types
from time import perf_counter_ns as now
from typing import Any

from ..chunks import check, cpu_seconds, settle, tensors
from ..line import Line
from ..peer import chunk_adapter, extra_of, find
from ..peer_request import Request

POOL = 256 << 20
"""Bytes of its pool, many times what is under way."""
STALLED = 60.0
"""Seconds without a chunk after which the run has failed."""


def build(transfer_manager: Any, multimodal_output: Any, request: Any, is_finished: bool) -> Any:
    """What its pipelines configure: the processor that makes a payload of a stage's output."""
    keys: Any = importlib.import_module("vllm_omni.data_entry_keys")
    return keys.OmniPayloadStruct(
        codes=keys.CodesStruct(audio=multimodal_output["codes"]["audio"]),
        meta=keys.MetaStruct(left_context_size=25, codec_chunk_frames=25),
    )


def work(line: Line, friends: list[socket.socket], job: dict[str, Any]) -> None:
    """Serve steps until the line closes."""
    import torch

    torch.set_num_threads(1)
    producer = job["role"] == "producer"
    adapter = chunk_adapter(find(job["peer"]), job["connector"], 0 if producer else 1)
    side = Producer(adapter, job) if producer else Consumer(adapter, job)
    settle()
    line.send({"ready": True})
    while True:
        step = line.receive()
        if step["do"] == "open":
            line.send(side.open(step))
        elif step["do"] == "idle":
            used = cpu_seconds()
            time.sleep(step["seconds"])
            line.send({"cpu": cpu_seconds() - used})
        elif step["do"] == "run":
            line.send(side.run())
        else:
            line.send(side.close())


def settings(job: dict[str, Any], streams: int) -> Any:
    """As much of vLLM's configuration as the adapter reads."""
    producer = job["role"] == "producer"
    name = job["connector"]
    extra = extra_of(name, "sender" if producer else "receiver", job["port"], POOL)
    model = types.SimpleNamespace(
        stage_id=0 if producer else 1,
        worker_type="generation",
        async_chunk=True,
        stage_connector_config={"name": name, "extra": extra},
        custom_process_next_stage_input_func=f"{__name__}.build" if producer else None,
    )
    scheduler = types.SimpleNamespace(max_num_seqs=streams)
    return types.SimpleNamespace(model_config=model, scheduler_config=scheduler)


class Half:
    """One process: a new adapter for each batch, so that none inherits another's state."""

    _adapter: Any

    def __init__(self, adapter: Any, job: dict[str, Any]) -> None:
        self._new_adapter = adapter
        self._job = job
        self._tensors = tensors()

    def close(self) -> dict[str, Any]:
        self._adapter.shutdown()
        return {}


class Producer(Half):
    """Submits round and round over all requests, at a pace or as fast as it can."""

    def open(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._batch = batch
        self._adapter = self._new_adapter(settings(self._job, batch["streams"]))
        self._requests = [Request(f"{batch['name']}-{i}") for i in range(batch["streams"])]
        return {}

    def run(self) -> dict[str, Any]:
        batch, source, adapter = self._batch, self._tensors, self._adapter
        rate, last = batch["rate"], batch["chunks"] - 1
        begun: list[int] = []
        used, start = cpu_seconds(), time.perf_counter()
        for round_ in range(batch["chunks"]):
            for request in self._requests:
                number = len(begun)
                if rate and (delay := start + number / rate - time.perf_counter()) > 0:
                    time.sleep(delay)
                chunk = source[number % len(source)]
                begun.append(now())
                request.num_computed_tokens += 1
                request.finished = round_ == last
                adapter.save_async(multimodal_output={"codes.audio": chunk}, request=request)
        while adapter._pending_save_reqs:
            time.sleep(0.001)
        return {"begun": begun, "cpu": cpu_seconds() - used}


class Ready(set[str]):
    """The set of requests whose chunk is there; says when it came."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()

    def add(self, request_id: str) -> None:
        self.queue.put((now(), request_id))


class Consumer(Half):
    """Stands in for the scheduler: asks for a request's next chunk the moment it has one."""

    def open(self, batch: dict[str, Any]) -> dict[str, Any]:
        self._batch = batch
        self._adapter = self._new_adapter(settings(self._job, batch["streams"]))
        self._ready = self._adapter._finished_load_reqs = Ready()
        self._requests = [Request(f"{batch['name']}-{i}") for i in range(batch["streams"])]
        for request in self._requests:
            self._adapter.load_async(request)
        return {}

    def run(self) -> dict[str, Any]:
        adapter, ready, streams = self._adapter, self._ready, self._batch["streams"]
        total = streams * self._batch["chunks"]
        usable = [0] * total
        index = {request.request_id: i for i, request in enumerate(self._requests)}
        next_ = list(range(streams))
        used = cpu_seconds()
        for _ in range(total):
            moment, request_id = ready.queue.get(timeout=STALLED)
            stream = index[request_id]
            request, number = self._requests[stream], next_[stream]
            usable[number] = moment
            if number < streams or number >= total - streams:
                check(request.additional_information["codes"]["audio"], self._tensors, number)
            request.additional_information = None
            next_[stream] = number + streams
            if number + streams < total:
                while request_id in adapter._registered_load_entries:  # its commit ends in a moment
                    time.sleep(0)
                adapter.load_async(request)
        used = cpu_seconds() - used
        return {"usable": usable, "cpu": used}
