"""From JSON text to a tree.

In: text. Out: nodes with lines; doubled keys are noted.
Never: reads a value as YAML would; only its position is taken from there.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from .mistakes import Mistake, Mistakes, refusal
from .tree import Kind, Node, Origin, Place, spelled
from .yaml_source import Loader

_NOT_YAML = re.compile(r"\\u[0-9a-fA-F]{4}|\\/|[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]")


class _Pairs(list[tuple[str, Any]]):
    """An object with its doubled keys still in it."""


def json_tree(text: str, kind: Kind, source: str, mistakes: Mistakes) -> Node:
    """The tree of a JSON text.

    Raises:
        ConfigError: not JSON.
    """
    try:
        value = json.loads(text, object_pairs_hook=_Pairs)
        return _Builder(kind, source, mistakes).build(value, _positions(text), (), None)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError too
        line = getattr(error, "lineno", None)
        deep = isinstance(error, RecursionError)
        problem = "nested too deep" if deep else getattr(error, "msg", str(error))
        raise refusal(source, [Mistake("", f"is not JSON: {problem}", line)]) from error


def _positions(text: str) -> yaml.Node | None:
    """The same text as YAML sees it, for its lines: JSON is as good as always YAML too.

    Only where things stand counts, so escapes and characters that YAML has not are made plain letters.
    """
    loader = Loader(_NOT_YAML.sub(lambda found: "x" * len(found[0]), text))
    try:
        return loader.get_single_node()
    except yaml.YAMLError:
        return None
    finally:
        loader.dispose()


class _Builder:
    def __init__(self, kind: Kind, source: str, mistakes: Mistakes) -> None:
        self._kind: Kind = kind
        self._source = source
        self._mistakes = mistakes

    def build(self, value: Any, seen: yaml.Node | None, place: Place, line: int | None) -> Node:
        """A value; one that has a key stands where its key does."""
        if line is None and seen is not None:
            line = seen.start_mark.line + 1
        origin = Origin(self._kind, self._source, line, spelled(place))
        below: list[Any] = seen.value if seen is not None else []
        if isinstance(value, _Pairs):
            pairs = below if isinstance(seen, yaml.MappingNode) else []
            return Node(self._object(value, pairs, place), origin)
        if isinstance(value, list):
            known = below if isinstance(seen, yaml.SequenceNode) else []
            nodes = known if len(known) == len(value) else [None] * len(value)
            items = [
                self.build(item, node, (*place, i), None)
                for i, (item, node) in enumerate(zip(value, nodes, strict=True))
            ]
            return Node(items, origin)
        return Node(self._mistakes.bounded(value, origin), origin)

    def _object(self, pairs: _Pairs, known: list[Any], place: Place) -> dict[str, Node]:
        nodes = known if len(known) == len(pairs) else [(None, None)] * len(pairs)
        built: dict[str, Node] = {}
        for (key, value), (key_node, value_node) in zip(pairs, nodes, strict=True):
            line = key_node.start_mark.line + 1 if key_node is not None else None
            node = self.build(value, value_node, (*place, key), line)
            if key in built:
                first = built[key].origin.line
                text = "this key stands here twice" + (f", first in line {first}" if first else "")
                self._mistakes.at(node.origin, text)
            built[key] = node
        return built
