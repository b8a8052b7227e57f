"""One tree out of several: a file over its bases, and a platform's section over both.

In: trees. Out: one tree whose every value still knows where it was written.
Never: interprets a connector or an edge.

What wins is what wins in vLLM-Omni 0.30: the later file; ``connectors`` are merged deep, ``stages`` by their
``stage_id`` and there key by key, of which a few (sampling parameters, engine arguments) are merged deep.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigError
from .mistakes import Mistakes, hint
from .shapes import lifted, stage_key, stages_of
from .tree import Node, Origin, merged

DEEP_STAGE_KEYS = (
    "default_sampling_params",
    "default_pooling_params",
    "subtalker_sampling_params",
    "engine_extras",
    "engine_args",
)
PLATFORMS = ("cpu", "cuda", "musa", "npu", "rocm", "xpu")
"""Platforms that may be asked for where the file has no section for them."""

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
        mistakes.at(named.origin, f"has to be the path of a file, not {named.value!r}")
        return tree
    path = folder / named.value
    real = path.resolve()
    if real in below:
        mistakes.at(named.origin, f"{path} is a base of itself")
        return tree
    try:
        base = load(path)
    except ConfigError as error:
        if not error.mistakes:
            mistakes.at(named.origin, str(error))
        for found in error.mistakes:
            mistakes.at(Origin("base", str(path), found.line, found.path), found.text)
        return tree
    if not isinstance(base.value, dict):
        mistakes.at(named.origin, f"{path} has to be a mapping")
        return tree
    base = with_bases(base, path.parent, load, expand, mistakes, (*below, real))
    return over(base, tree)


def over(base: Node, overlay: Node) -> Node:
    """``overlay`` over ``base``, both whole files."""
    entries = {**base.mapping(), **overlay.mapping()}
    for key, merge in (("connectors", _deep), ("stages", _by_id), ("platforms", _platforms)):
        lower, upper = base.get(key), overlay.get(key)
        if lower is not None and upper is not None:
            entries[key] = merge(lower, upper)
    return Node(entries, overlay.origin)


def _deep(lower: Node, upper: Node) -> Node:
    if not isinstance(lower.value, dict) or not isinstance(upper.value, dict):
        return lower if upper.value is None else upper
    return merged(lower, upper)


def _by_id(lower: Node, upper: Node) -> Node:
    """Stages of both lists: the lower's order, then those that only the upper has."""
    if not isinstance(lower.value, list) or not isinstance(upper.value, list):
        return lower if upper.value is None else upper
    stages = list(lower.value)
    at = {stage_key(stage): i for i, stage in reversed(list(enumerate(stages)))}
    merged_already = set()
    for stage in upper.value:
        key = stage_key(stage)
        if key in at and key not in merged_already:
            stages[at[key]] = _stage(stages[at[key]], stage)
            merged_already.add(key)
        else:  # a new one, or one that is listed twice: that is told later
            stages.append(stage)
    return upper.replaced(stages)


def _stage(lower: Node, upper: Node) -> Node:
    entries = {**lower.mapping(), **upper.mapping()}
    for key in DEEP_STAGE_KEYS:
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
    """The tree with the section of ``platform`` over it; every section is looked at.

    Raises:
        ConfigError: the platform is none that is known, and the file has no section for it.
    """
    holder = tree.get("platforms")
    sections = holder.mapping() if holder is not None else {}
    ids = {stage_key(stage) for stage in stages_of(tree)}
    for section in sections.values():
        for stage in stages_of(section):
            if stage.get("stage_id") is None:
                mistakes.at(stage.origin, "a platform's stage has to say its 'stage_id'")
            elif stage_key(stage) not in ids:
                text = f"there is no stage {stage_key(stage)!r}" + hint(stage_key(stage), ids)
                mistakes.at(stage.origin, text)
    if platform is None:
        return tree
    if platform not in sections:
        if platform not in PLATFORMS:
            known = sorted({*PLATFORMS, *map(str, sections)})
            raise ConfigError(f"unknown platform {platform!r}" + hint(platform, known))
        return tree
    return over(tree, _marked(lifted(sections[platform])))


def _marked(node: Node) -> Node:
    """The same with origins that say ``platform``."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _marked(below) for key, below in value.items()}
    elif isinstance(value, list):
        value = [_marked(below) for below in value]
    return Node(value, node.origin._replace(kind="platform"))
