"""``$NAME`` and ``${NAME}`` in the keys that are ours.

In: a tree, an environment. Out: the tree with the variables' values; unset ones are noted.
Never: touches a key of the serving engine. ``$$`` is a dollar sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from .mistakes import Mistakes
from .shapes import LISTED, stages_of, with_stages
from .tree import Node

_OWN = ("connectors", "edges", "async_chunk")
_OWN_OF_STAGE = (
    "host",
    "num_replicas",
    "tensor_parallel_size",
    "async_chunk",
    "input_connectors",
    "output_connectors",
)
OWN_OF_STAGE = ("stage_id", *_OWN_OF_STAGE)
_TYPED = ("num_replicas", "tensor_parallel_size", "async_chunk", "window_size", "max_inflight")
"""Keys that hold no text. What an option of a connector is, its model knows."""
_REFERENCE = re.compile(r"\$(?:(\$)|\{([^}]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_NUMBER = 40


def expanded(tree: Node, environment: Mapping[str, str], mistakes: Mistakes) -> Node:
    """The tree with every reference in it replaced; what cannot be is noted and left out."""
    tree = _own(tree, _OWN, environment, mistakes)
    stages = [_own(stage, _OWN_OF_STAGE, environment, mistakes) for stage in stages_of(tree)]
    return with_stages(tree, stages)


def with_ids(tree: Node, environment: Mapping[str, str], mistakes: Mistakes) -> Node:
    """The tree with references in what names a stage replaced: files are merged by it."""

    def named(holder: Node, *keys: str) -> Node:
        return _own(holder, keys, environment, mistakes)

    tree = with_stages(tree, [named(stage, "stage_id") for stage in stages_of(tree)])
    entries = dict(tree.mapping())
    listed, sections = tree.get(LISTED), tree.get("platforms")
    if listed is not None:
        items = [named(item, "from_stage", "to_stage") for item in listed.items()]
        entries[LISTED] = listed.replaced(items)
    if sections is not None and isinstance(sections.value, dict):
        inner = {k: with_ids(below, environment, mistakes) for k, below in sections.value.items()}
        entries["platforms"] = sections.replaced(inner)
    return tree.replaced(entries) if entries else tree


def _own(
    holder: Node, keys: tuple[str, ...], environment: Mapping[str, str], mistakes: Mistakes
) -> Node:
    if not isinstance(holder.value, dict):
        return holder
    entries = dict(holder.value)
    for key in keys:
        if key in entries:
            node = _below(entries.pop(key), key, environment, mistakes)
            if node is not None:
                entries[key] = node
    return holder.replaced(entries)


def _below(node: Node, key: Any, environment: Mapping[str, str], mistakes: Mistakes) -> Node | None:
    value = node.value
    if isinstance(value, dict):
        below = {k: _below(item, k, environment, mistakes) for k, item in value.items()}
        return node.replaced({k: item for k, item in below.items() if item is not None})
    if isinstance(value, list):
        items = [_below(item, None, environment, mistakes) for item in value]
        return node.replaced([item for item in items if item is not None])
    found = expand(node, environment, mistakes)
    if found is not None and found.origin.kind == "environment" and key in _TYPED:
        return found.replaced(typed(found.value))
    return found


def expand(node: Node, environment: Mapping[str, str], mistakes: Mistakes) -> Node | None:
    """One scalar with its references replaced by text; ``None`` where one cannot be."""
    text = node.value
    if not isinstance(text, str) or "$" not in text:
        return node
    used: list[str] = []
    wrong: list[str] = []

    def value_of(found: re.Match[str]) -> str:
        if found[1]:
            return "$"
        name = found[2] if found[2] is not None else found[3]
        if _NAME.fullmatch(name) is None:
            wrong.append(f"{found[0]!r} is no variable; '$$' is a dollar sign")
        elif name not in environment:
            wrong.append(f"the environment variable {name} is not set; set it, or write a value")
        used.append(name)
        return environment.get(name, "")

    result = _REFERENCE.sub(value_of, text)
    for problem in wrong:
        mistakes.at(node.origin, problem)
    if wrong:
        mistakes.spoil(node.origin)
        return None
    if not used:
        return node.replaced(result)
    return Node(result, node.origin._replace(kind="environment", variables=tuple(used)))


def typed(text: Any) -> Any:
    """A variable's text as the number or truth value that it would be, were it written in its place."""
    if not isinstance(text, str) or len(text) > _LONGEST_NUMBER:
        return text
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return text
    return value if isinstance(value, (bool, int, float)) else text


def escaped(value: Any) -> Any:
    """Values whose dollar signs would survive :func:`expanded`."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, dict):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return value
