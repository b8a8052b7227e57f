"""What a connector's ``extra`` holds: options that are checked, knobs that pass through.

In: keys and values of ``extra``, the options model of its connector. Out: options, or what is wrong.
Never: changes a knob, knows a place in a file.
"""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo

from .. import registry
from ..abc import Options
from ..abc.options import known_of
from .known_knobs import KNOBS, Knob
from .mistakes import nearest

__all__ = ["KNOBS", "Knob", "Wrong", "judge", "kind_of", "validate"]

_LIKE_AN_OPTION = 0.8
_LIKE_A_WORD = 0.6
_LIKE_A_KNOB = 0.9

_OTHER_WORDS = {"protocol": "proto", "proto": "protocol", "backend_type": "backends"}
"""The same thing is called differently by another connector."""

_PLAIN: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
}


class Wrong(NamedTuple):
    """One option that is wrong."""

    place: tuple[str, ...]
    """Its key, below ``extra``."""
    text: str


def judge(key: str, options: type[Options]) -> str | None:
    """What is wrong with a key, if it looks like a slip of the pen.

    ``None`` for an option, for a known knob, and for a key that is near to neither: that may be a
    knob of code that is not known here. An option of another connector, which stays behind when a
    file's connector is changed, would be without effect.
    """
    if key in options.model_fields or key in KNOBS:
        return None
    meant = _OTHER_WORDS.get(key)
    if meant not in options.model_fields:
        others = _connectors_with(key)
        if others:
            return f"is an option of {' and '.join(others)} only; remove it"
        meant = nearest(key, options.model_fields, _LIKE_AN_OPTION) or _knob_meant(key)
    return None if meant is None else f"unknown option; did you mean {meant!r}?"


def _connectors_with(key: str) -> list[str]:
    names = {registry.canonical(name) for name in (*registry.names(), *registry.planned_names())}
    return sorted(name for name in names if key in registry.options_for(name).model_fields)


@functools.lru_cache(maxsize=4096)
def _knob_meant(key: str) -> str | None:
    """The knob that differs by a slip only: not by a whole word, which would make it another one."""
    return next((knob for knob in KNOBS if _slipped(key.lower(), knob)), None)


def _slipped(written: str, knob: str) -> bool:
    if not 0.8 * len(knob) <= len(written) <= 1.25 * len(knob):
        return False
    words, known = written.split("_"), knob.split("_")
    if len(words) == len(known):
        return _alike(written, knob, _LIKE_A_KNOB) and all(
            _alike(a, b, _LIKE_A_WORD) for a, b in zip(words, known, strict=True)
        )
    return _alike("".join(words), "".join(known), _LIKE_A_KNOB)


def _alike(a: str, b: str, least: float) -> bool:
    compared = difflib.SequenceMatcher(None, a, b, autojunk=False)
    # The first is an upper bound of the second, and costs a tenth.
    return compared.quick_ratio() >= least and compared.ratio() >= least


def validate(
    options: type[Options], values: Mapping[str, Any], lax: Collection[str] = ()
) -> tuple[Options | None, list[Wrong]]:
    """The options, or what is wrong with which.

    Args:
        options: the connector's model.
        values: keys and values that are to be its options.
        lax: keys whose values came out of environment variables, which know text only: there
            ``50051`` and ``true`` are read as what the option is.
    """
    fields = options.model_fields
    read = {
        key: _read(fields[key], value) if key in lax and key in fields else value
        for key, value in values.items()
    }
    try:
        return options.model_validate(read), []
    except pydantic.ValidationError as error:
        wrong: dict[str, Wrong] = {}
        for detail in error.errors(include_url=False):
            key = str(detail["loc"][0])
            wrong.setdefault(key, Wrong((key,), _text(options, key, read, detail)))
        return None, list(wrong.values())


def _read(field: FieldInfo, value: Any) -> Any:
    """Text as the field's type, if it can be read so."""
    if isinstance(value, bool):
        value = "true" if value else "false"
    if not isinstance(value, (int, str)):
        return value
    kind: Any = field.annotation
    try:
        return pydantic.TypeAdapter(kind).validate_strings(str(value))
    except pydantic.ValidationError:
        return value


def _text(
    options: type[pydantic.BaseModel], key: str, values: Mapping[str, Any], detail: Any
) -> str:
    if key not in options.model_fields:
        meant = nearest(key, options.model_fields)
        return "unknown option" + (f"; did you mean {meant!r}?" if meant else "")
    inner = _model_of(options.model_fields[key])
    if inner is not None and len(detail["loc"]) > 1:
        below = str(detail["loc"][1])
        text = _text(inner, below, values[key], {**detail, "loc": detail["loc"][1:]})
        return f"{below}: {text}"
    if detail["type"] == "value_error":  # a rule of the model's own, in its own words
        return str(detail["ctx"]["error"])
    said = repr(values[key])
    said = said if len(said) <= 40 else f"{said[:37]}..."
    return f"has to be {kind_of(options.model_fields[key])}, not {said}"


def _model_of(field: FieldInfo) -> type[pydantic.BaseModel] | None:
    """The model of an option that has options of its own."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            return kind
    return None


def kind_of(field: FieldInfo) -> str:
    """What a field takes, in people's terms: ``a whole number of at least 1``."""
    return known_of(field).get("said") or _kind(field.annotation, field.metadata)


def _kind(annotation: Any, rules: Iterable[Any]) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *own = get_args(annotation)
        return _kind(inner, [*_flat(own), *rules])
    if origin is Literal:
        return _either([repr(choice) for choice in get_args(annotation)])
    if origin in (Union, types.UnionType):
        kinds = [part for part in get_args(annotation) if part is not type(None)]
        return _either([_kind(part, rules) for part in kinds])
    return _PLAIN.get(annotation, "something else") + _bounds(rules)


def _flat(rules: Iterable[Any]) -> list[Any]:
    return [
        part
        for rule in rules
        for part in (rule.metadata if isinstance(rule, FieldInfo) else [rule])
    ]


def _either(choices: list[str]) -> str:
    *most, last = choices
    return f"{', '.join(most)} or {last}" if most else last


def _bounds(rules: Iterable[Any]) -> str:
    found = {
        word: getattr(rule, word)
        for rule in rules
        for word in ("gt", "ge", "le", "min_length")
        if getattr(rule, word, None) is not None
    }
    if "ge" in found and "le" in found:
        return f" from {found['ge']} to {found['le']}"
    told = {"gt": " above {}", "ge": " of at least {}", "min_length": " that is not empty"}
    return "".join(text.format(found[word]) for word, text in told.items() if word in found)
