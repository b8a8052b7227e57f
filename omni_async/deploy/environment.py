"""``$NAME`` and ``${NAME}`` in the keys that are ours.

In: a tree, an environment. Out: the tree with the variables' values; unset ones are noted.
Never: touches a key of the serving engine. ``$$`` is a dollar sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .mistakes import Mistakes
from .tree import Node

_OWN = ("connectors", "edges", "async_chunk")
OWN_OF_STAGE = (
    "stage_id",
    "host",
    "num_replicas",
    "tensor_parallel_size",
    "async_chunk",
    "input_connectors",
    "output_connectors",
)
_REFERENCE = re.compile(r"\$(?:(\$)|\{([^}]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPED = re.compile(r"[+-]?[0-9]{1,18}|true|false", re.IGNORECASE)


def expanded(tree: Node, environment: Mapping[str, str], mistakes: Mistakes) -> Node:
    """The tree with every reference in it replaced."""
    entries = dict(tree.mapping())
    for key in _OWN:
        if key in entries:
            entries[key] = _below(entries[key], environment, mistakes)
    stages = entries.get("stages")
    if stages is not None and isinstance(stages.value, list):
        entries["stages"] = stages.replaced(
            [_stage(stage, environment, mistakes) for stage in stages.value]
        )
    return tree.replaced(entries) if entries else tree


def _stage(stage: Node, environment: Mapping[str, str], mistakes: Mistakes) -> Node:
    entries = dict(stage.mapping())
    for key in OWN_OF_STAGE:
        if key in entries:
            entries[key] = _below(entries[key], environment, mistakes)
    return stage.replaced(entries) if entries else stage


def _below(node: Node, environment: Mapping[str, str], mistakes: Mistakes) -> Node:
    value = node.value
    if isinstance(value, dict):
        below = {key: _below(item, environment, mistakes) for key, item in value.items()}
        return node.replaced(below)
    if isinstance(value, list):
        return node.replaced([_below(item, environment, mistakes) for item in value])
    return expand(node, environment, mistakes)


def expand(node: Node, environment: Mapping[str, str], mistakes: Mistakes) -> Node:
    """One scalar. A value that is nothing but a reference becomes a number or a truth value if it
    looks like one; text that only contains a reference stays text."""
    text = node.value
    if not isinstance(text, str) or "$" not in text:
        return node
    used: list[str] = []

    def value_of(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        name = found[2] if found[2] is not None else found[3]
        if _NAME.fullmatch(name) is None:
            mistakes.at(node.origin, f"{found[0]!r} is no variable; '$$' is a dollar sign")
            return ""
        used.append(name)
        if name not in environment:
            mistakes.at(
                node.origin, f"the environment variable {name} is not set; set it, or write a value"
            )
        return environment.get(name, "")

    result: Any = _REFERENCE.sub(value_of, text)
    if not used:
        return node.replaced(result)
    if _REFERENCE.fullmatch(text) and _TYPED.fullmatch(result):
        result = result.lower() == "true" if result.isalpha() else int(result)
    return Node(result, node.origin._replace(kind="environment", variables=tuple(used)))


def escaped(value: Any) -> Any:
    """Values whose dollar signs would survive :func:`expanded`."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return value
