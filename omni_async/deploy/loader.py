"""load_deploy: a file, or the mapping that it would be, becomes a checked Deploy.

In: a path or a mapping. Out: a Deploy, or one ConfigError that lists every mistake.
Never: guesses, falls back, starts anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .models import parse
from .source import read
from .wiring import Deploy, wire


def load_deploy(source: str | os.PathLike[str] | Mapping[str, Any]) -> Deploy:
    """Read and check a deploy YAML (or JSON, by the suffix ``.json``).

    An edge that names no connector gets ``SharedMemoryConnector``; who sends and who receives
    follows from the wiring. Keys of the serving engine are kept and left alone.

    Args:
        source: path of the file, or what the file would hold.

    Raises:
        ConfigError: the file cannot be read or is wrong. ``mistakes`` lists all that is wrong,
            each with its path in the file and its line.
    """
    tree, mistakes = read(source)
    parts = parse(tree, mistakes)
    stages, wires = wire(parts, mistakes)
    mistakes.settle()
    assert parts.model is not None  # parts are left out only with a mistake
    return Deploy(mistakes.source, stages, wires, parts.model)
