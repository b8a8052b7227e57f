"""The double against the vendor's own module, which loads on any machine and answers all but reads.

Both are called alike, each in a process of its own; what they have, and what they say, is compared.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def told(which: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.backends.yuanrong_te.calls", which]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    last = (ended.stderr.splitlines() or [""])[-1]
    if ended.returncode and last.startswith(("ImportError", "ModuleNotFoundError")):
        pytest.skip(f"the vendor's module cannot be loaded: {last}")
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def vendor() -> dict[str, Any]:
    return told("vendor")


@pytest.fixture(scope="module")
def double() -> dict[str, Any]:
    return told("double")


def drift(vendor: dict[str, Any], double: dict[str, Any]) -> list[str]:
    """What the double has otherwise, in words."""
    found = []
    for part in ("surface", "results"):
        for name in sorted({*vendor[part], *double[part]}):
            theirs, ours = vendor[part].get(name), double[part].get(name)
            if theirs == ours:
                continue
            if not isinstance(theirs, dict) or not isinstance(ours, dict):
                found.append(f"{name}: {theirs}, and not {ours}")
                continue
            for key in sorted({*theirs, *ours}):
                if theirs.get(key) != ours.get(key):
                    found.append(f"{name}.{key}: {theirs.get(key)}, and not {ours.get(key)}")
    return found


def test_the_double_has_what_the_vendor_has_and_says_what_it_says(
    vendor: dict[str, Any], double: dict[str, Any]
) -> None:
    assert drift(vendor, double) == []
    assert len(double["results"]) > 40
    assert len(double["surface"]["TransferEngine"]) == 9


@pytest.mark.parametrize(
    ("part", "name", "key", "value", "said"),
    [
        ("surface", "TransferEngine", "finalize", None, "TransferEngine.finalize: []"),
        ("surface", "TransferEngine", "transfer_sync_read", ["x"], "target_hostname"),
        ("surface", "ErrorCode", "kNotReady", 7, "ErrorCode.kNotReady: 8, and not 7"),
        ("results", "read before", None, [8, "kNotReady", "no"], "transfer engine not initialized"),
    ],
)
def test_drift_is_told(
    vendor: dict[str, Any],
    double: dict[str, Any],
    part: str,
    name: str,
    key: str | None,
    value: Any,
    said: str,
) -> None:
    changed = copy.deepcopy(double)
    if key is None:
        changed[part][name] = value
    elif value is None:
        changed[part][name]["close"] = changed[part][name].pop(key)
    else:
        changed[part][name][key] = value
    assert any(said in one for one in drift(vendor, changed))


def test_the_vendor_keeps_the_interpreters_lock() -> None:
    """What the engine's pieces, and a paragraph of its page, are for. A release that lets go of it in its calls
    needs ``PyEval_RestoreThread``; then both can be thought over."""
    found = importlib.util.find_spec("yr")
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    libraries = [one for folder in folders for one in Path(folder).rglob("_transfer_engine*.so")]
    if not libraries:
        pytest.skip("the vendor's package is not installed")
    assert b"PyEval_RestoreThread" not in libraries[0].read_bytes()
