"""Older shapes of a deploy file, brought to today's.

In: a file's tree. Out: the same with `connectors`, `edges` and `stages` at its top.
Never: loses a key, or an origin.

Older are: stages under ``stage_args``; ``connectors`` and ``edges`` under ``runtime``; connectors as a list of
``{from_stage, to_stage, spec}``; a stage's ``devices``, ``num_replicas`` and ``tensor_parallel_size`` below
its ``runtime`` and ``engine_args`` (which win over its own keys) or ``parallel_config`` (which does not).
"""

from __future__ import annotations

from typing import Any

from .mistakes import Mistakes
from .tree import Node

_LISTED = ("from_stage", "to_stage", "spec")
_LIFTED = (
    ("runtime", "num_replicas", True),
    ("runtime", "devices", True),
    ("engine_args", "tensor_parallel_size", True),
    ("parallel_config", "tensor_parallel_size", False),
)
"""Where a stage may hold one of its keys, and whether that wins over the key itself."""


def modern(tree: Node, mistakes: Mistakes) -> Node:
    """The tree in today's shape; what stands in two shapes at once is noted."""
    if not isinstance(tree.value, dict):
        return tree
    tree = _renamed(tree, "stage_args", "stages", mistakes)
    return _unlisted(_risen(tree, mistakes), mistakes)


def lifted(tree: Node) -> Node:
    """The tree with what its stages hold deeper brought to their own keys. Once, and after merging
    with its bases: there the deeper place wins over a later file's own key."""
    return with_stages(tree, [_lifted(stage) for stage in stages_of(tree)])


def stages_of(tree: Node) -> list[Node]:
    """Its stages, as nodes; none where ``stages`` is no list."""
    stages = tree.get("stages")
    return stages.items() if stages is not None else []


def stage_key(stage: Node) -> Any:
    """What tells a stage from others: its id, or the node itself where it has none."""
    named = stage.get("stage_id")
    return str(named.value) if named is not None else id(stage)


def with_stages(tree: Node, stages: list[Node]) -> Node:
    """The tree with these stages; unchanged where it has none."""
    known = tree.get("stages")
    if known is None or not isinstance(known.value, list):
        return tree
    return tree.replaced({**tree.mapping(), "stages": known.replaced(stages)})


def _renamed(tree: Node, old: str, new: str, mistakes: Mistakes) -> Node:
    node = tree.get(old)
    if node is None:
        return tree
    if tree.get(new) is not None:
        mistakes.at(node.origin, f"is the older spelling of {new!r}, which stands here too")
        return tree.without(old)
    return tree.replaced({new if key == old else key: value for key, value in tree.value.items()})


def _risen(tree: Node, mistakes: Mistakes) -> Node:
    """``runtime.connectors`` and ``runtime.edges`` at the top."""
    runtime = tree.get("runtime")
    if runtime is None:
        return tree
    entries = dict(tree.mapping())
    for key in ("connectors", "edges"):
        node = runtime.get(key)
        if node is None:
            continue
        runtime = runtime.without(key)
        if node.value and key in entries and entries[key].value:
            mistakes.at(node.origin, f"{key!r} stands at the top of the file too; write it once")
        elif node.value:
            entries[key] = node
    entries["runtime"] = runtime
    return tree.replaced(entries)


def _lifted(stage: Node) -> Node:
    entries: dict[Any, Node] = dict(stage.mapping())
    for holder, key, wins in _LIFTED:
        node = stage.mapping()[holder].get(key) if holder in stage.mapping() else None
        if node is not None and (wins or key not in entries):
            entries[key] = node
    return stage.replaced(entries) if entries else stage


def _unlisted(tree: Node, mistakes: Mistakes) -> Node:
    """Connectors that are a list become inline ones at both ends of their edge."""
    listed = tree.get("connectors")
    if listed is None or not isinstance(listed.value, list):
        return tree
    stages = {stage_key(stage): stage for stage in stages_of(tree)}
    for item in listed.value:
        parts = [item.get(key) for key in _LISTED]
        strange = [key for key in item.mapping() if key not in _LISTED]
        if None in parts or strange:
            text = "an item of a list of connectors has 'from_stage', 'to_stage' and 'spec'"
            mistakes.at(item.origin, text + (f", not {strange[0]!r}" if strange else ""))
            continue
        source, target, spec = (part for part in parts if part is not None)
        for here, key, end in (
            (source, "output_connectors", f"to_stage_{target.value}"),
            (target, "input_connectors", f"from_stage_{source.value}"),
        ):
            stage = stages.get(str(here.value))
            if stage is None:
                mistakes.at(here.origin, f"there is no stage {str(here.value)!r}")
                continue
            known = stage.get(key)
            ends = {end: spec, **(known.mapping() if known is not None else {})}
            entries = {**stage.mapping(), key: Node(ends, (known or item).origin)}
            stages[str(here.value)] = stage.replaced(entries)
    return with_stages(
        tree.without("connectors"), [stages[stage_key(stage)] for stage in stages_of(tree)]
    )
