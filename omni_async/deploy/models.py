"""The shape of a deploy file, before anything follows from it.

In: the file's tree. Out: pydantic models, and a list of what does not fit them.
Never: looks at two places of a file at once; that is `wiring`.

Keys of the serving engine (``devices``, ``gpu_memory_utilization`` ...) stay in ``model_extra`` as they were.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from .hosts import checked_host
from .mistakes import Mistakes, hint, nearest
from .tree import Place, find, said

T = TypeVar("T")
M = TypeVar("M", bound=pydantic.BaseModel)


def _stage_id(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        raise ValueError("a stage's name has no control characters")
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("a stage is named by a whole number or a word")
    if value == "" or (isinstance(value, int) and value < 0):
        raise ValueError("a stage's number is 0 or more, its name not empty")
    return str(value)


def _no_items(value: Any) -> Any:
    """``edges:`` with nothing behind it is how people write an empty list."""
    return [] if value is None else value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [] if value is None else [value]


def _nothing_is_empty(value: Any) -> Any:
    """``extra:`` with nothing behind it is how people write an empty mapping."""
    return {} if value is None else value


def _alias_or_inline(value: Any) -> str:
    return "alias" if isinstance(value, (str, int, float, type(None))) else "inline"


StageId = Annotated[str, BeforeValidator(_stage_id)]
Listed = Annotated[list[T], BeforeValidator(_listed)]
Mapped = Annotated[dict[str, T], BeforeValidator(_nothing_is_empty)]


MOST_RANKS = 4096
MOST_REPLICAS = 1 << 16
"""More than any machine has: a slip, and work without end for whoever counts ports."""


def _count(value: Any) -> Any:
    """vLLM-Omni 0.30 takes ``"3"`` and ``3.0`` for 3."""
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _limit(value: int) -> int:
    if value < 1 and value != -1:
        raise ValueError(f"has to be at least 1, not {value}; -1 sets no limit")
    return value


Limit = Annotated[int, AfterValidator(_limit)]
"""Chunks of a stream that may be under way."""


class _Model(pydantic.BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class ConnectorModel(_Model):
    """``{name: SharedMemoryConnector, extra: {...}}``."""

    name: str = Field(min_length=1)
    extra: Mapped[Any] = {}


Reference = Annotated[
    Annotated[str, Tag("alias")] | Annotated[ConnectorModel, Tag("inline")],
    Discriminator(_alias_or_inline),
]
"""The alias of a connector, or a connector written in place."""


class EdgeModel(_Model):
    """``{from: 0, to: 1, window_size: -1, max_inflight: 1}``."""

    from_stage: StageId = Field(alias="from")
    to_stage: StageId = Field(alias="to")
    window_size: Limit = -1
    max_inflight: Limit = -1


class StageModel(_Model):
    """One stage; the engine's own keys stay in ``model_extra``."""

    model_config = ConfigDict(extra="allow")

    stage_id: StageId
    host: Annotated[str, AfterValidator(checked_host)] | None = None
    num_replicas: Annotated[int, BeforeValidator(_count), Field(ge=1, le=MOST_REPLICAS)] = 1
    tensor_parallel_size: int = Field(default=1, ge=1, le=MOST_RANKS)
    engine_input_source: Listed[StageId] = []
    input_connectors: Mapped[Reference] = {}
    output_connectors: Mapped[Reference] = {}
    async_chunk: bool | None = None


class PlatformModel(_Model):
    """``{stages: [...], ...}``: what lies over the file where it runs on this platform."""

    model_config = ConfigDict(extra="allow")

    stages: Annotated[list[dict[Any, Any]], BeforeValidator(_no_items)] = []


class FileModel(_Model):
    """A whole file; keys that are not ours stay in ``model_extra``."""

    model_config = ConfigDict(extra="allow")

    connectors: Mapped[ConnectorModel] = {}
    stages: list[StageModel] = []
    edges: Annotated[list[EdgeModel], BeforeValidator(_no_items)] = []
    async_chunk: bool = True
    runtime: Mapped[Any] = {}
    platforms: Mapped[Annotated[PlatformModel, BeforeValidator(_nothing_is_empty)]] = {}


OWN_KEYS = (*FileModel.model_fields, "base_config", "stage_args")
OWN_STAGE_KEYS = tuple(StageModel.model_fields)

ENGINE_KEYS = (
    "active_stream_window",
    "custom_voice_dir",
    "data_parallel_size",
    "distributed_executor_backend",
    "dtype",
    "duplex_session",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "forced_aligner",
    "model_runner",
    "pipeline",
    "pipeline_parallel_size",
    "quantization",
    "session_mode",
    "trust_remote_code",
)
"""Keys that vLLM-Omni 0.30 has at the top of a file. One that holds nothing else configures a model
that is one stage, or a part of one, and has no edges."""

_KINDS = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a mapping",
    "string_type": "text",
}
_TYPO = 0.8
"""How alike a foreign key must be to one of ours to be taken for a slip of the pen."""


@dataclass(frozen=True)
class Parts:
    """What fits the shape, with each part's position in the file."""

    connectors: dict[str, ConnectorModel | None]
    """``None`` where the alias is defined by something that does not fit."""
    stages: dict[int, StageModel]
    edges: dict[int, EdgeModel]
    every_stage: bool
    """Whether all stages of the file are in ``stages``."""
    model: FileModel | None
    """The whole file, or ``None`` when a part is left out above."""


def parse(tree: Any, mistakes: Mistakes) -> Parts:
    """The parts that fit; what does not is noted, and the rest can still be looked at."""
    if not isinstance(tree, dict):
        mistakes.add((), "the file has to be a mapping with 'stages' in it")
        return Parts({}, {}, {}, False, None)
    _foreign_keys(tree, mistakes)
    _stages_are_there(tree, mistakes)
    try:
        model = FileModel.model_validate(tree)
    except pydantic.ValidationError as error:
        # What is unknown first: it may tell that what is missing is only misspelt.
        found = sorted(error.errors(include_url=False), key=lambda d: d["type"] == "missing")
        bad = {_translate(tree, detail, mistakes) for detail in found}
        return _salvage(tree, bad)
    stages, edges = dict(enumerate(model.stages)), dict(enumerate(model.edges))
    return Parts(dict(model.connectors), stages, edges, True, model)


def _salvage(tree: dict[Any, Any], bad: set[Place]) -> Parts:
    def fitting(model: type[M], value: Any, *place: str | int) -> M | None:
        try:
            return model.model_validate(_without(value, place, bad))
        except pydantic.ValidationError:
            return None

    connectors, stages, edges = (tree.get(key) for key in ("connectors", "stages", "edges"))
    connectors = connectors if isinstance(connectors, dict) else {}
    stages = stages if isinstance(stages, list) else []
    edges = edges if isinstance(edges, list) else []
    fits = [fitting(StageModel, item, "stages", i) for i, item in enumerate(stages)]
    arrows = [fitting(EdgeModel, item, "edges", i) for i, item in enumerate(edges)]
    return Parts(
        {str(k): fitting(ConnectorModel, item, "connectors", k) for k, item in connectors.items()},
        {i: stage for i, stage in enumerate(fits) if stage is not None},
        {i: edge for i, edge in enumerate(arrows) if edge is not None},
        bool(fits) and None not in fits,
        None,
    )


def _without(value: Any, place: Place, bad: set[Place]) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        key: _without(item, (*place, key), bad)
        for key, item in value.items()
        if (*place, key) not in bad
    }


def _foreign_keys(tree: dict[Any, Any], mistakes: Mistakes) -> None:
    _typos(tree, (), OWN_KEYS, mistakes)
    _typos_of_stages(tree.get("stages"), ("stages",), mistakes)
    if isinstance(tree.get("runtime"), dict):
        _typos(tree["runtime"], ("runtime",), ("connectors", "edges"), mistakes)
    sections = tree.get("platforms")
    for name, section in sections.items() if isinstance(sections, dict) else ():
        if isinstance(section, dict):
            _typos(section, ("platforms", str(name)), OWN_KEYS, mistakes)
            _typos_of_stages(section.get("stages"), ("platforms", str(name), "stages"), mistakes)


def _typos_of_stages(stages: Any, place: Place, mistakes: Mistakes) -> None:
    for i, stage in enumerate(stages if isinstance(stages, list) else []):
        if isinstance(stage, dict):
            _typos(stage, (*place, i), OWN_STAGE_KEYS, mistakes)


def _typos(node: dict[Any, Any], place: Place, own: tuple[str, ...], mistakes: Mistakes) -> None:
    for key in node:
        if not isinstance(key, str) or key in own or key in ENGINE_KEYS:
            continue
        meant = nearest(key, own, _TYPO)
        if meant is not None:
            mistakes.add((*place, key), f"unknown key; did you mean {meant!r}?")
            _not_missing((*place, meant), mistakes)


def _not_missing(place: Place, mistakes: Mistakes) -> None:
    """It is there, under a wrong name."""
    origin, rest = find(place, mistakes.origins)
    if origin is not None and rest:
        mistakes.spoil(origin, rest)


def _stages_are_there(tree: dict[Any, Any], mistakes: Mistakes) -> None:
    """A file without stages has nothing that belongs to stages, and something of an engine."""
    if tree.get("stages") == []:
        mistakes.add(("stages",), "must not be empty")
    elif (
        "stages" not in tree
        and not mistakes.baseless
        and (tree.get("connectors") or tree.get("edges") or not set(tree) & set(ENGINE_KEYS))
    ):
        mistakes.add(("stages",), "is missing")


def _translate(tree: Any, detail: Any, mistakes: Mistakes) -> Place:
    """Note one of pydantic's errors in the file's own terms; returns where it is."""
    kind, place = detail["type"], _place(tree, detail)
    if kind == "missing":
        if mistakes.baseless:
            return place
        text = "is missing"
    elif kind == "extra_forbidden":
        model = EdgeModel if place[0] == "edges" else ConnectorModel
        fields = [field.alias or name for name, field in model.model_fields.items()]
        text = "unknown key" + hint(str(place[-1]), fields)
        meant = nearest(str(place[-1]), fields)
        if meant is not None:
            _not_missing((*place[:-1], meant), mistakes)
    elif kind == "invalid_key" or detail["loc"][-1:] == ("[key]",):
        text = f"a key has to be text, not {said(detail['input'])}"
    elif kind == "value_error":
        text = str(detail["ctx"]["error"])
    elif kind in _KINDS:
        text = f"has to be {_KINDS[kind]}, not {said(detail['input'])}"
    elif kind in ("too_short", "string_too_short"):
        text = "must not be empty"
    elif kind == "less_than_equal":
        text = f"has to be at most {detail['ctx']['le']}, not {said(detail['input'])}"
    elif kind == "greater_than_equal":
        text = f"has to be at least {detail['ctx']['ge']}, not {said(detail['input'])}"
    else:
        text = f"{detail['msg'].replace('Input should', 'has to')}, not {said(detail['input'])}"
    mistakes.add(place, text)
    return place


def _place(tree: Any, detail: Any) -> Place:
    """Where in the file an error points: pydantic's place without the tags of its unions."""
    place: list[str | int] = []
    node, parts = tree, detail["loc"]
    for i, part in enumerate(parts):
        if part == "[key]":
            continue
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            absent = detail["type"] == "missing" and i == len(parts) - 1
            if not absent:
                continue  # the tag of a union: no key of the file
        place.append(part)
    return tuple(place)
