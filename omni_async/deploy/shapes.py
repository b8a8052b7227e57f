"""Older shapes of a deploy file, brought to today's.

In: a file's tree. Out: the same with `connectors`, `edges` and `stages` at its top.
Never: loses a key, or an origin; drops what is wrong unread.

Older are: stages under ``stage_args``; ``connectors`` and ``edges`` under ``runtime``; connectors as a list of
``{from_stage, to_stage, spec}``; a stage's ``devices``, ``num_replicas`` and ``tensor_parallel_size`` below
its ``runtime`` and ``engine_args`` (which win over its own keys) or ``parallel_config`` (which does not).
"""

from __future__ import annotations

from typing import Any

from .mistakes import Mistakes
from .tree import Node, said

LISTED = "\0listed"
"""What connectors that are a list are called until the stages of all files are together."""

_PARTS = ("from_stage", "to_stage", "spec")
LIFTED = (
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
    tree = _risen(tree, mistakes)
    listed = tree.get("connectors")
    if listed is not None and isinstance(listed.value, list):
        tree = tree.without("connectors")
        tree = tree.replaced({**tree.value, LISTED: listed})
    sections = tree.get("platforms")
    if sections is not None and isinstance(sections.value, dict):
        inner = {name: _section(section, mistakes) for name, section in sections.value.items()}
        tree = tree.replaced({**tree.value, "platforms": sections.replaced(inner)})
    return tree


def _section(section: Node, mistakes: Mistakes) -> Node:
    base = section.get("base_config")
    if base is not None:
        mistakes.at(
            base.origin, "a platform has no base of its own; name it at the top of the file"
        )
    return modern(section, mistakes)


def lifted(tree: Node) -> Node:
    """The tree with what its stages hold deeper brought to their own keys. Once, and after merging
    with its bases: there the deeper place wins over a later file's own key."""
    return with_stages(tree, [_lifted(stage) for stage in stages_of(tree)])


def settled(tree: Node) -> Node:
    """The tree with the deeper places that win telling what came out in the end: a platform or the
    environment may have changed it since it was lifted."""

    def stage(node: Node) -> Node:
        entries: dict[Any, Node] = dict(node.mapping())
        for holder, key, wins in LIFTED:
            deeper = entries.get(holder)
            if wins and key in entries and deeper is not None and deeper.get(key) is not None:
                entries[holder] = deeper.replaced({**deeper.mapping(), key: entries[key]})
        return node.replaced(entries) if entries else node

    return with_stages(tree, [stage(node) for node in stages_of(tree)])


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
    for holder, key, wins in LIFTED:
        deeper = entries.get(holder)
        node = deeper.get(key) if deeper is not None else None
        if node is not None and (wins or key not in entries):
            entries[key] = node
    return stage.replaced(entries) if entries else stage


def unlisted(tree: Node, mistakes: Mistakes) -> Node:
    """The tree with its list of connectors at both ends of their edges. After merging: an edge's
    stages may be in another file than its connector."""
    listed = tree.get(LISTED)
    if listed is None:
        return tree
    stages = {stage_key(stage): stage for stage in stages_of(tree)}
    seen: set[tuple[str, str]] = set()
    for item in listed.items():
        found = _parts(item, mistakes)
        if found is None:
            continue
        source, target, spec = found
        edge = (str(source.value), str(target.value))
        if edge in seen:
            mistakes.at(item.origin, f"the edge {edge[0]}->{edge[1]} is listed twice")
            continue
        seen.add(edge)
        for here, key, end in (
            (source, "output_connectors", f"to_stage_{edge[1]}"),
            (target, "input_connectors", f"from_stage_{edge[0]}"),
        ):
            stage = stages.get(str(here.value))
            if stage is None:
                mistakes.at(here.origin, f"there is no stage {str(here.value)!r}")
            else:
                stages[str(here.value)] = _with_end(stage, key, end, spec, mistakes)
    named = [stages[stage_key(stage)] for stage in stages_of(tree)]
    return with_stages(tree.without(LISTED), named)


def _parts(item: Node, mistakes: Mistakes) -> tuple[Node, Node, Node] | None:
    parts = [item.get(key) for key in _PARTS]
    strange = [key for key in item.mapping() if key not in _PARTS]
    if None in parts or strange:
        text = "an item of a list of connectors has 'from_stage', 'to_stage' and 'spec'"
        mistakes.at(item.origin, text + (f", not {strange[0]!r}" if strange else ""))
        return None
    source, target, spec = (part for part in parts if part is not None)
    for part in (source, target):
        if isinstance(part.value, bool) or not isinstance(part.value, (int, str)):
            mistakes.at(part.origin, f"has to be a stage's id, not {said(part)}")
            return None
    return source, target, spec


def _with_end(stage: Node, key: str, end: str, spec: Node, mistakes: Mistakes) -> Node:
    known = stage.get(key)
    if known is not None and known.value is not None and not isinstance(known.value, dict):
        return stage  # no mapping: told as that
    if known is not None and known.get(end) is not None:
        mistakes.at(spec.origin, f"the stage names a connector for this edge too, as {end!r}")
        return stage
    entries = {end: spec, **(known.mapping() if known is not None else {})}
    holder = Node(entries, (known or spec).origin)
    return stage.replaced({**stage.mapping(), key: holder})
