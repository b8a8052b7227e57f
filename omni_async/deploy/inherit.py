"""One tree out of several: a file over its bases, and a platform's section over both.

In: trees. Out: one tree whose every value still knows where it was written.
Never: interprets a connector or an edge.

What wins is what wins in vLLM-Omni 0.30: the later file; ``connectors`` are merged deep, ``stages`` by their
``stage_id`` and there key by key, of which a few (sampling parameters, engine arguments) are merged deep.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..errors import ConfigError
from .mistakes import Mistakes, hint, nearest
from .shapes import LISTED, lifted, stage_key, stages_of
from .tree import Node, Origin, merged, said

DEEP_STAGE_KEYS = (
    "default_sampling_params",
    "default_pooling_params",
    "subtalker_sampling_params",
    "engine_extras",
    "engine_args",
)
PLATFORMS = ("cpu", "cuda", "musa", "npu", "rocm", "xpu")
"""Platforms that may be asked for where the file has no section for them."""

DEEPEST = 20
"""Bases of bases; more are a mistake."""

Load = Callable[[Path], Node]
Expand = Callable[[Node], Node | None]


def with_bases(
    tree: Node,
    folder: Path,
    load: Load,
    expand: Expand,
    mistakes: Mistakes,
    below: tuple[Path, ...] = (),
) -> Node:
    """The tree over what its ``base_config`` names, over what that names, and so on.

    Args:
        folder: what a relative ``base_config`` starts from: where the file itself is.
        load: reads one file.
        expand: replaces references to environment variables in a scalar.
        below: the bases that are being followed.
    """
    named = tree.get("base_config")
    if named is not None:
        named = expand(named)
    tree = tree.without("base_config") if named is not None else tree
    if named is None or named.value is None:
        return tree
    if not isinstance(named.value, str) or not named.value:
        mistakes.at(named.origin, f"has to be the path of a file, not {said(named)}")
        return tree
    path = folder / named.value
    base = _base(path, named, load, mistakes, below)
    if base is None:
        mistakes.baseless = True
        return tree
    base = with_bases(base, path.parent, load, expand, mistakes, (*below, path.resolve()))
    return over(base, tree)


def _base(
    path: Path, named: Node, load: Load, mistakes: Mistakes, below: tuple[Path, ...]
) -> Node | None:
    try:
        if path.resolve() in below:
            mistakes.at(named.origin, f"{path} is a base of itself")
            return None
        base = load(path)
    except ConfigError as error:
        if not error.mistakes:
            mistakes.at(named.origin, str(error))
        for found in error.mistakes:
            mistakes.at(Origin("base", str(path), found.line, found.path), found.text)
        return None
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, or no name at all
        mistakes.at(named.origin, f"{named.value!r} is no path of a file ({error})")
        return None
    if not isinstance(base.value, dict):
        mistakes.at(named.origin, f"{path} has to be a mapping")
        return None
    if len(below) >= DEEPEST:
        mistakes.at(named.origin, f"more than {DEEPEST} bases stand on one another")
        return None
    return base


def over(base: Node, overlay: Node, deep: tuple[str, ...] = DEEP_STAGE_KEYS) -> Node:
    """``overlay`` over ``base``, both whole files; ``deep`` are keys of stages that are merged."""
    entries = {**base.mapping(), **overlay.mapping()}
    for key, merge in (
        ("connectors", _deep),
        ("stages", partial(_by_id, deep=deep)),
        ("platforms", _platforms),
        (LISTED, _listed),
    ):
        lower, upper = base.get(key), overlay.get(key)
        if lower is not None and upper is not None:
            entries[key] = merge(lower, upper)
    return Node(entries, overlay.origin)


def _listed(lower: Node, upper: Node) -> Node:
    """Both lists of connectors; of one edge the upper's."""

    def edge(item: Node) -> tuple[str, str]:
        ends = (item.get("from_stage"), item.get("to_stage"))
        return tuple(str(end.value) if end is not None else "" for end in ends)  # type: ignore[return-value]

    named = {edge(item) for item in upper.items()}
    kept = [item for item in lower.items() if edge(item) not in named]
    return upper.replaced([*kept, *upper.items()])


def _deep(lower: Node, upper: Node) -> Node:
    if not isinstance(lower.value, dict) or not isinstance(upper.value, dict):
        return lower if upper.value is None else upper
    return merged(lower, upper)


def _by_id(lower: Node, upper: Node, deep: tuple[str, ...]) -> Node:
    """Stages of both lists: the lower's order, then those that only the upper has."""
    if not isinstance(lower.value, list) or not isinstance(upper.value, list):
        return lower if upper.value is None else upper
    stages = list(lower.value)
    at = {stage_key(stage): i for i, stage in reversed(list(enumerate(stages)))}
    merged_already = set()
    for stage in upper.value:
        key = stage_key(stage)
        if key in at and key not in merged_already:
            stages[at[key]] = _stage(stages[at[key]], stage, deep)
            merged_already.add(key)
        else:  # a new one, or one that is listed twice: that is told later
            stages.append(stage)
    return upper.replaced(stages)


def _stage(lower: Node, upper: Node, deep: tuple[str, ...]) -> Node:
    entries = {**lower.mapping(), **upper.mapping()}
    for key in deep:
        below, above = lower.get(key), upper.get(key)
        if below is not None and above is not None:
            entries[key] = _deep(below, above)
    return Node(entries, upper.origin)


def _platforms(lower: Node, upper: Node) -> Node:
    if not isinstance(lower.value, dict) or not isinstance(upper.value, dict):
        return lower if upper.value is None else upper
    sections = dict(lower.value)
    for name, section in upper.value.items():
        sections[name] = over(sections[name], section) if name in sections else section
    return upper.replaced(sections)


def on_platform(tree: Node, platform: str | None, mistakes: Mistakes) -> Node:
    """The tree with the section of ``platform`` over it; every section is looked at."""
    holder = tree.get("platforms")
    sections = holder.mapping() if holder is not None else {}
    ids = [str(named.value) for s in stages_of(tree) if (named := s.get("stage_id")) is not None]
    for section in sections.values():
        for stage in stages_of(section):
            _known(stage, ids, mistakes)
    if platform is None or holder is None:
        return tree
    if platform in sections:
        # As vLLM-Omni has it: here a stage's environment is merged, between files it is replaced.
        return over(tree, _marked(lifted(sections[platform])), (*DEEP_STAGE_KEYS, "env"))
    known = sorted({*PLATFORMS, *map(str, sections)})
    meant = nearest(platform, known)
    if platform not in PLATFORMS and meant is not None:
        mistakes.at(holder.origin, f"platform {platform!r} is not known; did you mean {meant!r}?")
    return tree


def _known(stage: Node, ids: list[str], mistakes: Mistakes) -> None:
    if not isinstance(stage.value, dict):
        return  # told as that
    named = stage.get("stage_id")
    if named is None:
        mistakes.at(stage.origin, "a platform's stage has to say its 'stage_id'")
    elif str(named.value) not in ids and not mistakes.baseless:
        text = f"there is no stage {str(named.value)!r}" + hint(str(named.value), ids)
        mistakes.at(stage.origin, text)


def _marked(node: Node) -> Node:
    """The same with origins that say ``platform``."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _marked(below) for key, below in value.items()}
    elif isinstance(value, list):
        value = [_marked(below) for below in value]
    return Node(value, node.origin._replace(kind="platform"))
