"""JSON Schema of a deploy file, for editors.

In: the options of every known connector. Out: one schema of a whole file.
Never: judges a file itself; what needs two places at once, such as an alias, only loading sees.
"""

from __future__ import annotations

from typing import Any

from .. import registry
from .known_knobs import KNOBS, Knob
from .models import ENGINE_KEYS

Schema = dict[str, Any]

_STARTS = ("stages", "stage_args", "base_config", *ENGINE_KEYS)
"""Keys of which a deploy file has at least one."""


def json_schema() -> Schema:
    """JSON Schema 2020-12 of a deploy file: what completes and marks it in an editor.

    Older shapes are allowed, and so are keys of the serving engine. Every value that is ours may be an
    environment variable.
    """
    connectors = _known_connectors()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Deploy file",
        "description": "The stages of a pipeline and what moves bytes between them.",
        "type": "object",
        "anyOf": [{"required": [key]} for key in _STARTS],
        "properties": {
            "base_config": _said(
                "A file that this one is laid over, relative to it.", {"type": ["string", "null"]}
            ),
            "connectors": {"$ref": "#/$defs/connectors"},
            "stages": {"$ref": "#/$defs/stages"},
            "edges": {"$ref": "#/$defs/edges"},
            "async_chunk": _said(
                "Whether stages stream to each other in chunks, where a stage says nothing itself.",
                _variable_or({"type": "boolean"}),
                default=True,
            ),
            "platforms": _said(
                "By platform: what is laid over the file there.",
                _mapping({"$ref": "#/$defs/platform"}),
            ),
            "stage_args": _said("Older spelling of `stages`.", {"$ref": "#/$defs/stages"}),
            "runtime": _said(
                "Settings of the serving engine. Older files have `connectors` and `edges` here.",
                {
                    "type": ["object", "null"],
                    "properties": {
                        "connectors": {"$ref": "#/$defs/connectors"},
                        "edges": {"$ref": "#/$defs/edges"},
                    },
                },
            ),
        },
        "if": {"not": {"required": ["base_config"]}},
        "then": {"properties": {"connectors": {"additionalProperties": {"required": ["name"]}}}},
        "$defs": {**_shapes(), "connector": _connector(connectors), **_extras(connectors)},
    }


def _known_connectors() -> dict[str, list[str]]:
    """Connector name → all that it is called in a file."""
    known: dict[str, list[str]] = {}
    for name in sorted({*registry.names(), *registry.planned_names()}):
        known.setdefault(registry.canonical(name), []).append(name)
    return known


def _shapes() -> Schema:
    stage_id = _said(
        "A whole number or a word.",
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}]},
    )
    whole = _variable_or({"type": "integer", "minimum": 1})
    limit = _variable_or({"type": "integer", "anyOf": [{"const": -1}, {"minimum": 1}]})
    reference = _said(
        "The alias of a connector, or a connector written in place.",
        {
            "type": ["string", "object"],
            "if": {"type": "object"},
            "then": {"$ref": "#/$defs/connector", "required": ["name"]},
        },
    )
    listed = {
        "type": "object",
        "required": ["from_stage", "to_stage", "spec"],
        "properties": {
            "from_stage": {"$ref": "#/$defs/stage_id"},
            "to_stage": {"$ref": "#/$defs/stage_id"},
            "spec": {"$ref": "#/$defs/connector"},
        },
        "additionalProperties": False,
    }
    return {
        "variable": _said("An environment variable.", {"type": "string", "pattern": r"\$"}),
        "stage_id": stage_id,
        "connectors": _said(
            "By alias: what moves bytes. Older files have a list, with the ends of each edge.",
            {
                "type": ["object", "array", "null"],
                "additionalProperties": {"$ref": "#/$defs/connector"},
                "items": listed,
            },
        ),
        "stages": _said(
            "The stages of the pipeline.", {"type": "array", "items": {"$ref": "#/$defs/stage"}}
        ),
        "stage": {
            "type": "object",
            "required": ["stage_id"],
            "properties": {
                "stage_id": {"$ref": "#/$defs/stage_id"},
                "host": _said("Where its senders listen.", {"type": ["string", "null"]}),
                "devices": {"description": "Devices of the stage, for the serving engine."},
                "num_replicas": _said("Data-parallel replicas.", whole, default=1),
                "tensor_parallel_size": _said("Ranks of one replica.", whole, default=1),
                "engine_input_source": _said(
                    "Stages that this one takes its input from.",
                    {
                        "anyOf": [
                            {"$ref": "#/$defs/stage_id"},
                            {"type": "array", "items": {"$ref": "#/$defs/stage_id"}},
                            {"type": "null"},
                        ]
                    },
                ),
                "input_connectors": _ends("from_stage", "What it receives over.", reference),
                "output_connectors": _ends("to_stage", "What it sends over.", reference),
                "async_chunk": _said(
                    "Whether this stage streams in chunks.",
                    _variable_or({"type": ["boolean", "null"]}),
                ),
            },
        },
        "edges": _said(
            "Arrows between stages. One that no connector is named for gets shared memory.",
            {"type": ["array", "null"], "items": {"$ref": "#/$defs/edge"}},
        ),
        "edge": {
            "type": "object",
            "required": ["from", "to"],
            "properties": {
                "from": {"$ref": "#/$defs/stage_id"},
                "to": {"$ref": "#/$defs/stage_id"},
                "window_size": limit,
                "max_inflight": limit,
            },
            "additionalProperties": False,
        },
        "platform": {
            "type": ["object", "null"],
            "properties": {
                "stages": {"anyOf": [{"$ref": "#/$defs/stages"}, {"type": "null"}]},
            },
        },
    }


def _ends(prefix: str, meaning: str, reference: Schema) -> Schema:
    named = {f"^{prefix}_.+$": reference}
    ends = {"type": ["object", "null"], "patternProperties": named, "additionalProperties": False}
    return _said(f"{meaning} Keys are `{prefix}_` with a stage's id.", ends)


def _connector(known: dict[str, list[str]]) -> Schema:
    every = [name for called in known.values() for name in called]
    return {
        "type": "object",
        "properties": {
            "name": _said("Which connector.", _variable_or({"enum": every})),
            "extra": _said("Its options, and the knobs of stages.", {"type": ["object", "null"]}),
        },
        "additionalProperties": False,
        "allOf": [
            {
                "if": {"properties": {"name": {"enum": called}}, "required": ["name"]},
                "then": {"properties": {"extra": {"$ref": f"#/$defs/{name}"}}},
            }
            for name, called in known.items()
        ],
    }


def _extras(known: dict[str, list[str]]) -> Schema:
    role = {"not": {}, "description": "Follows from the wiring; not to be written."}
    knobs = {key: _knob(knob) for key, knob in KNOBS.items()}
    found: Schema = {"knobs": {"properties": {**knobs, "role": role}}}
    for name in known:
        options = registry.options_for(name)
        schema = options.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
        for inner, shape in schema.get("$defs", {}).items():
            found[f"{name}.{inner}"] = shape
        found[name] = {
            "type": ["object", "null"],
            "allOf": [{"$ref": "#/$defs/knobs"}],
            "properties": {
                key: _option(rules, key in options.edge_wide())
                for key, rules in schema["properties"].items()
            },
        }
    return found


def _option(schema: Schema, edge_wide: bool) -> Schema:
    words = ("description", "default", "title", "unit", "edge_wide", "said")
    rules = {word: rule for word, rule in schema.items() if word not in words}
    meaning = schema.get("description", "")
    if schema.get("unit"):
        meaning += f" In {schema['unit']}."
    if edge_wide:
        meaning += " Both ends of an edge have to agree in it."
    told: Schema = {"default": schema["default"]} if "default" in schema else {}
    return _said(meaning.strip(), _variable_or(rules), **told)


def _knob(knob: Knob) -> Schema:
    unit = f", {knob.unit}" if knob.unit else ""
    return {"description": f"{knob.meaning} A knob of stages: {knob.kind}{unit}."}


def _said(meaning: str, schema: Schema, **told: Any) -> Schema:
    return {"description": meaning, **told, **schema}


def _variable_or(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"$ref": "#/$defs/variable"}]}


def _mapping(values: Schema) -> Schema:
    return {"type": ["object", "null"], "additionalProperties": values}
