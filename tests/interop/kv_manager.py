"""The unmodified KV manager of vLLM-Omni 0.30, in a process of its own.

In: caches and requests. Out: what it sent or received, in forms that can be sent to the tests.
Never: changes a module of the wheel; each one that gets loaded is compared with the wheel's own hashes.

Stood in for are, besides what its connectors need, the two functions of vLLM's that tell a rank, and the names
that its diffusion requests and schedulers take from elsewhere: none of them does anything in a transfer.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from omni_async.cli.bench import peer, peer_vendors
from omni_async.cli.bench.peer_request import quiet
from omni_async.cli.bench.peer_vendors import MOONCAKE

MANAGER = "vllm_omni.distributed.omni_connectors.kv_transfer_manager"
UTILS = "vllm_omni.distributed.omni_connectors.utils.kv_utils"
POOL = 64 << 20


def load(found: peer.Peer, place: list[int]) -> Any:
    """The manager's module.

    Args:
        place: rank and number of ranks that a manager finds when it is made.
    """
    stand_ins: dict[str, dict[str, Any]] = {
        "vllm.distributed": {},
        "vllm.distributed.parallel_state": {
            "get_tensor_model_parallel_rank": lambda: place[0],
            "get_tensor_model_parallel_world_size": lambda: place[1],
        },
        "vllm.logger": {"init_logger": quiet},
        "vllm_omni.inputs": {},
        "vllm_omni.inputs.data": {"OmniDiffusionSamplingParams": object, "OmniPromptType": object},
        "vllm_omni.diffusion.sched": {},
        "vllm_omni.diffusion.sched.interface": {"KVPrefetchJob": dict},
    }
    for name, contents in stand_ins.items():
        peer._stand_in(name, contents)
    diffusion = types.ModuleType("vllm_omni.diffusion")
    diffusion.__path__ = [str(Path(found.root, "diffusion"))]  # its request.py is the real one
    sys.modules[diffusion.__name__] = diffusion
    return peer._load(found, MANAGER, peer.SERIALIZATION, UTILS)


class Managers:
    """Ranks of two stages: those that send are stage 0, those that receive stage 1."""

    def __init__(self, wheel: str) -> None:
        self._place = [0, 1]
        self._wheel = peer.find(wheel)
        self._module = load(self._wheel, self._place)
        self._open: list[Any] = []
        self._met: set[str] = set()
        # Its interpreter's tracker of shared memory takes what others have fetched for leaks.
        os.environ["PYTHONWARNINGS"] = "ignore"

    def open(
        self,
        role: str,
        port: int,
        rank: int,
        ranks: tuple[int, int],
        pool: int = POOL,
        connector: str = MOONCAKE,
        extra: dict[str, Any] | None = None,
    ) -> int:
        """One more manager, by its number from now on.

        Args:
            extra: options of a connector that has no ports.
        """
        sends = role == "sender"
        self._place[:] = rank, ranks[0] if sends else ranks[1]
        peer_vendors.before(connector)
        module = importlib.import_module(peer.CONNECTORS[connector])
        if (
            connector not in self._met
        ):  # once: the connector's own word for what it needs is replaced
            peer_vendors.after(connector, module)
            self._met.add(connector)
        mooncake = {
            "host": "127.0.0.1",
            "zmq_port": port,
            "protocol": "tcp",
            "memory_pool_size": pool,
            "memory_pool_device": "cpu",
        }
        options = mooncake if connector == MOONCAKE else extra or {}
        config = {
            "connector_config": {"type": connector, **options},
            "omni_from_stage": "0",
            "omni_to_stage": "1",
            "stage_id": 0 if sends else 1,
            "engine_input_source": [0],
            "need_send_cache": sends,
            "need_recv_cache": not sends,
            "recv_timeout": 10.0,
            "rank_mapping": {"from_tp": ranks[0], "to_tp": ranks[1]},
        }
        manager = self._module.OmniKVTransferManager._create(config)
        assert manager.connector is not None
        peer._verify(self._wheel)  # it has just loaded its connector
        self._open.append(manager)
        return len(self._open) - 1

    # --- the format -------------------------------------------------------------------------------

    def to_bytes(self, rid: str, keys: Any, values: Any, bids: Any, meta: Any) -> bytes:
        raw: bytes = self._data(rid, keys, values, bids, meta).to_bytes()
        return raw

    def from_bytes(self, raw: bytes) -> Any:
        """Read it as it comes out of a connector on the host."""
        found = self._module.KVCacheTransferData.from_bytes(memoryview(bytearray(raw)))
        return _told(found)

    def from_tensor(self, raw: bytes) -> Any:
        """Read it as it is read on a device."""
        torch = self._module.torch
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        return _told(self._module.KVCacheTransferData.from_bytes_device(flat))

    def to_dict(self, rid: str, keys: Any, values: Any, bids: Any, meta: Any) -> Any:
        """The object that is sent where packing fails."""
        return self._data(rid, keys, values, bids, meta).to_dict()

    def _data(self, rid: str, keys: Any, values: Any, bids: Any, meta: Any) -> Any:
        blocks = {"key_cache": keys, "value_cache": values}
        return self._module.KVCacheTransferData(rid, blocks, bids, meta)

    # --- keys and shares --------------------------------------------------------------------------

    def keys(self, request: str, places: list[tuple[int, int, int]]) -> list[Any]:
        """What ranks of stages send under and what they ask for; an error's text where refused."""
        utils = sys.modules[UTILS]

        def built(build: Any, *place: int) -> Any:
            try:
                return build(request, "0", "1", utils.KVTPTopology(*place))
            except ValueError as error:
                return str(error)

        builders = utils.build_rank_aware_send_keys, utils.build_rank_aware_recv_keys
        return [tuple(built(build, *place) for build in builders) for place in places]

    # --- transfers --------------------------------------------------------------------------------

    def send(
        self,
        number: int,
        request: str,
        caches: Any,
        block_ids: Any,
        seq_len: int,
        block_size: int,
    ) -> list[str]:
        """Send as its model runner does when a request has ended."""
        wanted = {request: {"block_ids": block_ids, "seq_len": seq_len}}
        acknowledged: list[str] = self._open[number].handle_finished_requests_kv_transfer(
            wanted, caches, block_size, "auto"
        )
        return acknowledged

    def hook(self, number: int) -> None:
        """Have it send as the workers of its AR stages do: all of a rank's heads to everyone."""
        manager, utils = self._open[number], sys.modules[UTILS]

        def build(request: str, from_stage: str, to_stage: str) -> Any:
            return utils.build_rank_aware_send_keys(
                request, from_stage, to_stage, manager.tp_topology
            )

        manager.kv_send_key_builder = build

    def receive(self, number: int, request: str, port: int) -> Any:
        """Receive as its diffusion runner does; ``None``, or what the pipeline would be given."""
        wanted = SimpleNamespace(
            request_id=request,
            sampling_params=None,
            kv_sender_info={"0": {"host": "127.0.0.1", "zmq_port": port}},
        )
        if not self._open[number].receive_kv_cache(wanted):
            return None
        found = wanted.past_key_values
        return found.key_cache, found.value_cache, wanted.kv_metadata

    def receive_family(
        self, number: int, request: str, companions: dict[str, str], port: int
    ) -> Any:
        """A request with companions, collected by the pipeline's own function."""

        def collect(_: str, ids: dict[str, str], manager: Any, device: Any) -> dict[str, Any]:
            found = {
                role: manager.receive_kv_cache_for_request(rid, device)[0]
                for role, rid in ids.items()
            }
            return {f"{role}_past_key_values": data["layer_blocks"] for role, data in found.items()}

        wanted = SimpleNamespace(
            request_id=request,
            sampling_params=SimpleNamespace(cfg_kv_request_ids=companions),
            kv_sender_info={"host": "127.0.0.1", "zmq_port": port},
        )
        if not self._open[number].receive_multi_kv_cache(wanted, collect):
            return None
        params = wanted.sampling_params
        others = {role: getattr(params, f"{role}_past_key_values") for role in companions}
        return wanted.past_key_values.key_cache, others

    def waiting(self, number: int) -> int:
        """Payloads that nobody has fetched."""
        connector = self._open[number].connector
        if hasattr(connector, "_local_buffers"):
            return len(connector._local_buffers)
        connector.reap_consumed()
        return len(getattr(connector, "_pending_keys", ()))

    # --- its connector by itself ------------------------------------------------------------------

    def put(self, number: int, key: str, value: Any) -> Any:
        """Whether it was put, and its size."""
        done, nbytes, _ = self._open[number].connector.put("0", "1", key, value)
        return done, nbytes

    def get(self, number: int, key: str, metadata: Any = None) -> Any:
        """``None``, or the value and its size."""
        return self._open[number].connector.get("0", "1", key, metadata)

    def close(self, number: int) -> None:
        self._open[number].close()


def _told(found: dict[str, Any]) -> Any:
    blocks = found["layer_blocks"]
    return (
        found["request_id"],
        blocks["key_cache"],
        blocks["value_cache"],
        found["block_ids"],
        found["metadata"],
    )
