"""What is wrong with options, in people's words.

In: an options model, keys and values from a file or a caller. Out: the options, or each mistake.
Never: stops at the first mistake, knows where the file is.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo

from .options import known_of

M = TypeVar("M", bound=pydantic.BaseModel)

_LONGEST_WORD = 80
"""Letters beyond which nothing is a slip of a known word; comparing them takes long."""
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


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that was probably meant."""
    if len(word) > _LONGEST_WORD:
        return None
    lower = {name.lower(): name for name in known}
    swapped = [name for name in lower if sorted(name) == sorted(word.lower())]
    if swapped:  # the right letters in the wrong order, which a short word shows too weakly
        return lower[swapped[0]]
    found = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=cutoff)
    return lower[found[0]] if found else None


def validate(
    options: type[M], values: Mapping[str, Any], lax: Collection[str] = ()
) -> tuple[M | None, list[Wrong]]:
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
