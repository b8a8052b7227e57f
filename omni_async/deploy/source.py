"""From a path or a mapping to plain values with the line each stands on.

In: a YAML or JSON file, or a mapping. Out: its tree, the line of every key, and doubled keys.
Never: knows what a key means, runs a tag of the file, follows an alias without end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError
from .mistakes import Mistake, Mistakes, Place, refusal

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML without libyaml: slower, the same result
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

NODE_LIMIT = 100_000
"""Values a file may have once its aliases are followed."""

_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


def read(source: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Any, Mistakes]:
    """The tree and a list that already holds the doubled keys.

    Raises:
        ConfigError: no such file, not a file, empty, not text, not YAML or JSON.
    """
    if isinstance(source, Mapping):
        return _copied(source), Mistakes("the deploy mapping", {})
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(f"a deploy is a path or a mapping, not {type(source).__name__}")
    path = Path(source)
    name = str(path)
    text = _text(path)
    lines: dict[Place, int] = {}
    mistakes = Mistakes(name, lines)
    if path.suffix == ".json":
        return _json(text, mistakes), mistakes
    return _yaml(text, lines, mistakes), mistakes


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory, not a deploy file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8 ({error.reason})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    if not text.strip():
        raise ConfigError(f"{path}: is empty")
    return text


def _copied(value: Any) -> Any:
    """A caller's mapping as dicts and lists of its own: later changes to it change nothing."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return value


def _yaml(text: str, lines: dict[Place, int], mistakes: Mistakes) -> Any:
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise ConfigError(f"{mistakes.source}: is empty")
            return _Builder(loader, lines, mistakes).build(node, ())
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise _broken(mistakes.source, error) from error
    except RecursionError as error:  # libyaml counts for itself
        raise ConfigError(f"{mistakes.source}: is nested too deep") from error


class _Builder:
    """Builds values from YAML nodes itself, because PyYAML forgets lines and doubled keys."""

    def __init__(self, loader: Any, lines: dict[Place, int], mistakes: Mistakes) -> None:
        self._loader = loader
        self._lines = lines
        self._mistakes = mistakes
        self._count = 0
        self._open: set[int] = set()
        self._own: dict[int, set[int]] = {}

    def build(self, node: yaml.Node, place: Place) -> Any:
        self._count += 1
        if self._count > NODE_LIMIT or id(node) in self._open:
            reason = "an alias holds itself" if id(node) in self._open else "it is too large"
            raise ConfigError(f"{self._mistakes.source}: cannot be followed, {reason}")
        self._lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if node.tag not in _PLAIN_TAGS:
            raise yaml.constructor.ConstructorError(
                None, None, f"the tag {node.tag!r} is not known here", node.start_mark
            )
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*place, i)) for i, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, place)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[Any, Any]:
        # `<<` puts the merged keys first, so that the mapping's own ones win below. It changes the
        # node, which an alias may bring here again: what was its own is noted the first time.
        own = self._own.setdefault(id(node), {id(key) for key, _ in node.value})
        self._loader.flatten_mapping(node)
        built: dict[Any, Any] = {}
        first: dict[Any, int] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, place)
            line = key_node.start_mark.line + 1
            below = (*place, key if isinstance(key, int) else str(key))
            if id(key_node) in own:
                if key in first:
                    text = f"this key stands here twice, first in line {first[key]}"
                    self._lines[below] = line
                    self._mistakes.add(below, text)
                first.setdefault(key, line)
            self._lines[below] = line
            built[key] = self.build(value_node, below)
        return built

    def _scalar(self, node: yaml.Node, place: Place) -> Any:
        try:
            return self._loader.construct_object(node, deep=True)
        except ValueError as error:  # looks like a date or a number and is none
            self._mistakes.add(place, f"cannot be read ({error}); quote it if it is text")
            return node.value

    def _key(self, node: yaml.Node, place: Place) -> Any:
        key = self._scalar(node, place)
        try:
            hash(key)
        except TypeError:
            self._mistakes.add(place, "a key has to be a word or a number")
            return str(key)
        return key


def _broken(source: str, error: yaml.YAMLError) -> ConfigError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    line = mark.line + 1 if mark is not None else None
    return refusal(source, [Mistake("", f"is not YAML: {problem}", line)])


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its doubled keys still in it."""


def _json(text: str, mistakes: Mistakes) -> Any:
    try:
        tree = json.loads(text, object_pairs_hook=_Pairs)
    except (json.JSONDecodeError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        problem = getattr(error, "msg", "nested too deep")
        raise refusal(mistakes.source, [Mistake("", f"is not JSON: {problem}", line)]) from error
    return _unpaired(tree, (), mistakes)


def _unpaired(value: Any, place: Place, mistakes: Mistakes) -> Any:
    if isinstance(value, _Pairs):
        built: dict[str, Any] = {}
        for key, item in _once(value, place, mistakes):
            built[key] = _unpaired(item, (*place, key), mistakes)
        return built
    if isinstance(value, list):
        return [_unpaired(item, (*place, i), mistakes) for i, item in enumerate(value)]
    return value


def _once(pairs: _Pairs, place: Place, mistakes: Mistakes) -> Iterable[tuple[str, Any]]:
    seen: set[str] = set()
    for key, item in pairs:
        if key in seen:
            mistakes.add((*place, key), "this key stands here twice")
        seen.add(key)
        yield key, item
