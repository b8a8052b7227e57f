"""What a transport tells at debug level: each put and get with edge, key, outcome and size."""

from __future__ import annotations

import re

import pytest

import omni_async


async def test_put_and_get_are_told_with_edge_key_and_outcome(
    caplog: pytest.LogCaptureFixture, namespace: str
) -> None:
    async with (
        omni_async.open_transport("memory", role="sender", stage="0", namespace=namespace) as tx,
        omni_async.open_transport("memory", role="receiver", stage="1", namespace=namespace) as rx,
    ):
        with caplog.at_level("DEBUG", "omni_async"):
            await tx.put("0", "1", "req-1", b"12345")
            await rx.get("0", "1", "req-1")
            with pytest.raises(omni_async.KeyNotFound):
                await rx.get("0", "1", "req-2", timeout=0)
    lines = [re.sub(r"seconds=\S+", "seconds=…", record.getMessage()) for record in caplog.records]
    told = [line for line in lines if line.startswith(("put.", "get."))]
    assert told == [
        "put.start edge='0->1' key='req-1'",
        "put.finish edge='0->1' key='req-1' outcome='ok' seconds=… nbytes=5",
        "get.start edge='0->1' key='req-1'",
        "get.finish edge='0->1' key='req-1' outcome='ok' seconds=… nbytes=5",
        "get.start edge='0->1' key='req-2'",
        "get.finish edge='0->1' key='req-2' outcome='KeyNotFound' seconds=…",
    ]
