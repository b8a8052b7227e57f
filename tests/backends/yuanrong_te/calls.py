"""Calls of the vendor's engine, and what came of them: ``python -m tests.backends.yuanrong_te.calls [double]``.

In: nothing. Out: its signatures, codes and results as JSON, for the vendor's module or for what stands for it.
Never: runs in a process that has Mooncake's library: the two do not bear each other.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import re
import socket
import sys
from typing import Any

HOST = "127.0.0.1"
CLASSES = ("TransferEngine", "Result")


def module_of(which: str) -> Any:
    if which == "double":
        from omni_async.testing.doubles import yuanrong_te

        return yuanrong_te
    from omni_async.backends.yuanrong_te._native import load

    return load()


def parameters(method: Any) -> list[str]:
    """Without ``self``; of a compiled method by the first line of its words."""
    try:
        names = list(inspect.signature(method).parameters)
    except ValueError:
        first = (method.__doc__ or "").splitlines()[0]
        found = re.fullmatch(r"\w+\((.*)\) -> [\w.\[\]]+", first)
        assert found is not None, first
        names = [part.split(":")[0].strip() for part in re.split(r", (?=\w+:)", found[1])]
    return names[1:]


def surface(module: Any) -> dict[str, Any]:
    """What there is to be called, and how."""
    told: dict[str, Any] = {
        "ErrorCode": {name: int(code) for name, code in module.ErrorCode.__members__.items()}
    }
    for name in CLASSES:
        cls = getattr(module, name)
        told[name] = {
            method: parameters(getattr(cls, method))
            for method in dir(cls)
            if not method.startswith("_")
        }
    return told


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def results(module: Any) -> dict[str, list[Any]]:
    """Results of calls that need no NPU: code, its name, words."""
    told: dict[str, list[Any]] = {}

    def note(what: str, result: Any) -> None:
        code = result.get_code()
        assert result.is_ok() is not result.is_error()
        assert f"code={int(code)}, msg={result.get_msg()}" in result.to_string()
        told[what] = [int(code), code.name, result.get_msg()]

    note("nothing", module.Result())
    port = _free_port()
    engine = module.TransferEngine()
    buffer = (ctypes.c_char * 8192)()
    address = ctypes.addressof(buffer)
    told["port before"] = [engine.get_rpc_port()]
    note("register before", engine.register_memory(address, 4096))
    note("unregister before", engine.unregister_memory(address))
    note("read before", engine.transfer_sync_read(f"{HOST}:{port}", address, address, 16))
    for device in ("", "0", "npu:", "npu:x", "NPU:0", "cuda:0"):
        note(f"device {device!r}", engine.initialize(f"{HOST}:{port}", "ascend", device))
    for host in ("", HOST, f"{HOST}:", f"{HOST}:0", f"{HOST}:x", f"{HOST}:99999", f":{port}"):
        note(
            f"host {host.replace(str(port), 'PORT')!r}", engine.initialize(host, "ascend", "npu:0")
        )
    for host in ("[::1]", "localhost"):
        other = module.TransferEngine()
        note(f"host {host}", other.initialize(f"{host}:{_free_port()}", "ascend", "npu:0"))
    note("initialize", engine.initialize(f"{HOST}:{port}", "ascend", "npu:0"))
    told["its port"] = [engine.get_rpc_port() == port]
    note("initialize again", engine.initialize(f"{HOST}:{port}", "ascend", "npu:0"))
    note("port taken", module.TransferEngine().initialize(f"{HOST}:{port}", "ascend", "npu:1"))
    note("register", engine.register_memory(address, 4096))
    note("register again", engine.register_memory(address, 4096))
    note("register inside", engine.register_memory(address + 4095, 10))
    note("register beside", engine.register_memory(address + 4096, 4096))
    note("register at 0", engine.register_memory(0, 10))
    note("register nothing", engine.register_memory(address, 0))
    note("register none", engine.batch_register_memory([], []))
    note("register uneven", engine.batch_register_memory([address], [1, 2]))
    note("unregister", engine.unregister_memory(address))
    note("unregister again", engine.unregister_memory(address))
    note("unregister elsewhere", engine.unregister_memory(address + 1))
    note("unregister none", engine.batch_unregister_memory([]))
    there = f"{HOST}:{port}"
    for what, arguments in {
        "no target": ("", [address], [address], [1]),
        "no port": (HOST, [address], [address], [1]),
        "nothing": (there, [], [], []),
        "uneven": (there, [address], [address], []),
        "to 0": (there, [0], [address], [1]),
        "from 0": (there, [address], [0], [1]),
        "no length": (there, [address], [address], [0]),
    }.items():
        note(f"read {what}", engine.batch_transfer_sync_read(*arguments))
    code = engine.batch_transfer_sync_read(there, [address], [address], [16]).get_code()
    told["read without a device"] = [code.name]  # the words differ: here a library is missing
    try:
        engine.register_memory(-1, 1)
    except TypeError:
        told["wrong type"] = ["TypeError"]
    note("finalize", engine.finalize())
    note("finalize again", engine.finalize())
    told["port after"] = [engine.get_rpc_port()]
    return told


def main() -> None:
    module = module_of(sys.argv[1])
    print(json.dumps({"surface": surface(module), "results": results(module)}))  # noqa: T201


if __name__ == "__main__":
    main()
