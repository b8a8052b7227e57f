"""load_deploy: a file, or the mapping that it would be, becomes a checked Deploy.

In: a path or a mapping. Out: a Deploy, or one ConfigError that lists every mistake.
Never: guesses, falls back, starts anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .deployment import Deploy, others_of
from .environment import expand, expanded, with_ids
from .inherit import on_platform, over, with_bases
from .mistakes import Mistakes
from .models import parse
from .shapes import lifted, modern, settled, unlisted
from .source import read, read_file, read_mapping
from .tree import Node, origins_of, plain
from .wiring import wire

PLATFORM_VARIABLE = "OMNI_ASYNC_PLATFORM"


def load_deploy(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    platform: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Deploy:
    """Read and check a deploy YAML (or JSON, by the suffix ``.json``).

    What a ``base_config`` names lies below the file, the section of ``platforms`` above both, and
    ``$NAME`` or ``${NAME}`` in the keys of connectors, edges and hosts is the environment's value
    (``$$`` is a dollar sign). An edge that names no connector gets ``SharedMemoryConnector``; who
    sends and who receives follows from the wiring. Keys of the serving engine are kept and left alone.

    Args:
        source: path of the file, or what the file would hold.
        platform: whose section of ``platforms`` applies; default ``$OMNI_ASYNC_PLATFORM``, or none.
        overrides: what would stand in one more file over all of these, such as
            ``{"async_chunk": False}``. It wins.

    Raises:
        ConfigError: the file cannot be read or is wrong. ``mistakes`` lists all that is wrong,
            each with its path in the file and its line.
    """
    tree, mistakes = read(source)
    if platform is None:
        platform = os.environ.get(PLATFORM_VARIABLE) or None
    elif not isinstance(platform, str):
        raise ConfigError(f"a platform is named by a text, not {platform!r}")
    folder = Path() if isinstance(source, Mapping) else Path(source).parent
    tree = _effective(tree, folder, platform, overrides or {}, mistakes)
    mistakes.origins = origins_of(tree)
    parts = parse(plain(tree), mistakes)
    stages, wires, connectors = wire(parts, mistakes)
    mistakes.settle()
    assert parts.model is not None  # parts are left out only with a mistake
    return Deploy(
        mistakes.source,
        stages,
        wires,
        connectors,
        others_of(parts.model),
        parts.model,
        platform,
        mistakes.origins,
    )


def _effective(
    tree: Node,
    folder: Path,
    platform: str | None,
    overrides: Mapping[str, Any],
    mistakes: Mistakes,
) -> Node:
    """One tree in today's shape, with its bases, its platform, the call and the environment in it."""

    def today(node: Node) -> Node:
        return with_ids(modern(node, mistakes), os.environ, mistakes)

    def load(path: Path) -> Node:
        return today(read_file(path, "base", mistakes))

    in_environment = partial(expand, environment=os.environ, mistakes=mistakes)
    tree = with_bases(today(tree), folder, load, in_environment, mistakes)
    tree = on_platform(lifted(tree), platform, mistakes)
    if overrides:
        given, wrong = read_mapping(overrides, "call", "the overrides")
        mistakes.join(wrong)
        tree = over(tree, lifted(today(given)))
    return settled(expanded(unlisted(tree, mistakes), os.environ, mistakes))
