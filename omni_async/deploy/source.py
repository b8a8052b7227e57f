"""From a path or a mapping to a tree of values that know where they stand.

In: a YAML or JSON file, or a mapping. Out: its tree; doubled keys are noted.
Never: knows what a key means, follows another file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .json_source import json_tree
from .mistakes import Mistakes
from .tree import Kind, Node, Origin, Place, spelled, too_large
from .yaml_source import yaml_tree


def read(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Node, Mistakes]:
    """The tree, and the list of mistakes that begins with what cannot be in any file.

    Raises:
        ConfigError: no such file, not a file, empty, not text, not YAML or JSON.
    """
    if isinstance(source, Mapping):
        return read_mapping(source, "file", "the deploy mapping")
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(f"a deploy is a path or a mapping, not {type(source).__name__}")
    path = Path(source)
    mistakes = Mistakes(str(path))
    return read_file(path, "file", mistakes), mistakes


def read_mapping(source: Mapping[str, Any], kind: Kind, name: str) -> tuple[Node, Mistakes]:
    """The tree of a caller's mapping, which stays the caller's: later changes to it change nothing.

    Raises:
        ConfigError: it is nested without end.
    """
    mistakes = Mistakes(name)
    try:
        return _copied(source, (), kind, mistakes), mistakes
    except RecursionError:
        raise ConfigError(f"{name} is nested too deep, or holds itself") from None


def read_file(path: Path, kind: Kind, mistakes: Mistakes) -> Node:
    """The tree of one file: JSON by the suffix ``.json``, YAML otherwise.

    Raises:
        ConfigError: as :func:`read`.
    """
    text = _text(path)
    tree = json_tree if path.suffix.lower() == ".json" else yaml_tree
    return tree(text, kind, str(path), mistakes)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory, not a deploy file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8 ({error.reason})") from None
    except (OSError, ValueError) as error:  # a NUL in the name is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({reason})") from error
    if not text.strip():
        raise ConfigError(f"{path}: is empty")
    return text


def _copied(value: Any, place: Place, kind: Kind, mistakes: Mistakes) -> Node:
    origin = Origin(kind, mistakes.source, None, spelled(place))
    if isinstance(value, Mapping):
        copies: dict[Any, Node] = {}
        for key, item in value.items():
            if too_large(key):
                mistakes.at(origin, "a key is a number with too many digits")
                continue
            below = (*place, key if isinstance(key, int) else str(key))
            copies[key] = _copied(item, below, kind, mistakes)
        return Node(copies, origin)
    if isinstance(value, (list, tuple)):
        items = [_copied(item, (*place, i), kind, mistakes) for i, item in enumerate(value)]
        return Node(items, origin)
    return Node(mistakes.bounded(value, origin), origin)
