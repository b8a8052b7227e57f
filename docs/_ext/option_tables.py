"""Sphinx directives that write the options reference from the models and the table of knobs.

In: a connector's name or alias, ``every`` or ``addressed`` for what several share, ``kv-instance``. Out: tables.
Never: says anything that the models do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from docutils import nodes
from docutils.parsers.rst import Directive
from pydantic import BaseModel
from sphinx.application import Sphinx

from omni_async import registry
from omni_async.abc import AddressedOptions, Options
from omni_async.deploy.knobs import KNOBS, kind_of
from omni_async.kv.control import KVOptions

SHARED: dict[str, type[BaseModel]] = {
    "every": Options,
    "addressed": AddressedOptions,
    "kv-instance": KVOptions,
}
OPTIONS = (("option", 20), ("takes", 24), ("default", 14), ("both ends", 8), ("meaning", 44))
KNOB = (("knob", 30), ("takes", 20), ("meaning", 50))
LATER = (
    "Not part of this release yet: files that name this connector load and their options are checked, "
    "but opening it says that it is not there."
)

Row = list[list[nodes.Node]]


def option_rows(model: type[BaseModel]) -> list[Row]:
    """The options that this model adds or changes, in its order."""
    return [_option_row(model, name) for name in own_options(model)]


def own_options(model: type[BaseModel]) -> list[str]:
    """Names of options that no base of the model has in the same words."""
    bases = [base for base in model.__mro__[1:] if issubclass(base, BaseModel)]
    inherited = bases[0].model_fields if bases else {}
    return [
        name
        for name, field in model.model_fields.items()
        if name not in inherited
        or (field.description, field.default)
        != (inherited[name].description, inherited[name].default)
    ]


def _option_row(model: type[BaseModel], name: str) -> Row:
    field = model.model_fields[name]
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    unit = f", in {extra['unit']}" if extra.get("unit") else ""
    return [
        [nodes.literal(text=name)],
        text(coded(kind_of(field)) + unit),
        [nodes.literal(text=repr(field.default))] if field.default is not None else text("–"),
        text("agree" if extra.get("edge_wide") else ""),
        text(field.description or ""),
    ]


def text(words: str) -> list[nodes.Node]:
    """Words, with what stands in backticks as code."""
    return [
        nodes.literal(text=part[1:-1]) if part.startswith("`") else nodes.Text(part)
        for part in re.split(r"(`[^`]+`)", words)
        if part
    ]


def coded(kind: str) -> str:
    """What is quoted is a value as it is written in a file."""
    return re.sub(r"'([^']+)'", r"`\1`", kind)


def table(head: Sequence[tuple[str, int]], rows: Iterable[Row]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=width) for _, width in head), cols=len(head))
    group += nodes.thead("", row([text(title) for title, _ in head]))
    group += nodes.tbody("", *(row(cells) for cells in rows))
    return nodes.table("", group)


def row(cells: Row) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


class OptionTable(Directive):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        model = SHARED.get(name) or registry.options_for(name)
        written: list[nodes.Node] = []
        if name not in SHARED and name in registry.planned_names():
            written.append(nodes.note("", nodes.paragraph(text=LATER)))
        rows = option_rows(model)
        if not rows:
            return [*written, nodes.paragraph(text="It has no options of its own.")]
        return [*written, table(OPTIONS, rows)]


class KnobTable(Directive):
    def run(self) -> list[nodes.Node]:
        rows: list[Row] = []
        for name, knob in KNOBS.items():
            unit = f", in {knob.unit}" if knob.unit else ""
            rows.append([[nodes.literal(text=name)], text(knob.kind + unit), text(knob.meaning)])
        return [table(KNOB, rows)]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("option-table", OptionTable)
    app.add_directive("knob-table", KnobTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
