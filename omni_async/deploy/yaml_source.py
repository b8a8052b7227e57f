"""From YAML text to a tree: PyYAML's own constructors forget lines and doubled keys.

In: text. Out: nodes with lines; doubled keys and unreadable scalars are noted.
Never: runs a tag of the file, follows an alias without end.
"""

from __future__ import annotations

from typing import Any

import yaml

from ..errors import ConfigError
from .mistakes import Mistake, Mistakes, refusal
from .tree import Kind, Node, Origin, Place, spelled

try:
    from yaml import CSafeLoader as Loader
except ImportError:  # PyYAML without libyaml: slower, the same result
    from yaml import SafeLoader as Loader  # type: ignore[assignment]

__all__ = ["NODE_LIMIT", "Loader", "yaml_tree"]

NODE_LIMIT = 100_000
"""Values a file may have once its aliases are followed."""

_UNREADABLE = (ValueError, KeyError, AttributeError, IndexError, TypeError, OverflowError)
"""What PyYAML's constructors run into over text that does not fit its tag."""

_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


def yaml_tree(text: str, kind: Kind, source: str, mistakes: Mistakes) -> Node:
    """The tree of a YAML text.

    Raises:
        ConfigError: not YAML, empty, nested too deep or too large.
    """
    try:
        loader = Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise ConfigError(f"{source}: is empty")
            return _Builder(loader, kind, source, mistakes).build(node, (), None)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark is not None else None
        if isinstance(error, yaml.reader.ReaderError):
            character = chr(error.character) if isinstance(error.character, int) else "\0"
            line = text.count("\n", 0, max(0, text.find(character))) + 1
            problem = f"it holds the character {character!r}"
        raise refusal(source, [Mistake("", f"is not YAML: {problem}", line)]) from error
    except RecursionError as error:  # libyaml counts for itself
        raise ConfigError(f"{source}: is nested too deep") from error


class _Builder:
    def __init__(self, loader: Any, kind: Kind, source: str, mistakes: Mistakes) -> None:
        self._loader = loader
        self._kind: Kind = kind
        self._source = source
        self._mistakes = mistakes
        self._count = 0
        self._open: set[int] = set()
        self._own: dict[int, set[int]] = {}
        self._doubled: set[int] = set()
        """Keys that were told: an alias may bring them here again."""

    def build(self, node: yaml.Node, place: Place, key_line: int | None) -> Node:
        """A value; one that has a key stands where its key does."""
        self._count += 1
        if self._count > NODE_LIMIT or id(node) in self._open:
            reason = "an alias holds itself" if id(node) in self._open else "it is too large"
            raise ConfigError(f"{self._source}: cannot be followed, {reason}")
        origin = self._origin(place, key_line or node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return Node(self._scalar(node, origin), origin)
        if node.tag not in _PLAIN_TAGS:
            raise yaml.constructor.ConstructorError(
                None, None, f"the tag {node.tag!r} is not known here", node.start_mark
            )
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                items = [self.build(item, (*place, i), None) for i, item in enumerate(node.value)]
                return Node(items, origin)
            assert isinstance(node, yaml.MappingNode)
            return Node(self._mapping(node, place), origin)
        finally:
            self._open.discard(id(node))

    def _origin(self, place: Place, line: int) -> Origin:
        return Origin(self._kind, self._source, line, spelled(place))

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[Any, Node]:
        # `<<` puts the merged keys first, so that the mapping's own ones win below. It changes the
        # node, which an alias may bring here again: what was its own is noted the first time.
        own = self._own.setdefault(id(node), {id(key) for key, _ in node.value})
        self._loader.flatten_mapping(node)
        built: dict[Any, Node] = {}
        first: dict[Any, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._key(key_node, place)
            below = (*place, key if isinstance(key, int) else str(key))
            if id(key_node) in own:
                if key in first and id(key_node) not in self._doubled:
                    self._doubled.add(id(key_node))
                    text = f"this key stands here twice, first in line {first[key]}"
                    self._mistakes.at(self._origin(below, line), text)
                first.setdefault(key, line)
            built[key] = self.build(value_node, below, line)
        return built

    def _scalar(self, node: yaml.Node, origin: Origin) -> Any:
        try:
            value = self._loader.construct_object(node, deep=True)
        except _UNREADABLE as error:  # looks like a date or a number, or is said to be, and is none
            self._mistakes.at(origin, f"cannot be read ({error}); quote it if it is text")
            self._mistakes.spoil(origin)
            return node.value
        return self._mistakes.bounded(value, origin)

    def _key(self, node: yaml.Node, place: Place) -> Any:
        origin = self._origin(place, node.start_mark.line + 1)
        key = self._scalar(node, origin)
        try:
            hash(key)
        except TypeError:
            self._mistakes.at(origin, "a key has to be a word or a number")
            return str(key)
        return key
