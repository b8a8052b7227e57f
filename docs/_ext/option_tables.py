"""A Sphinx directive that writes a connector's options from its pydantic model.

In: a connector name or alias. Out: a table of option, type, default and meaning.
Never: says anything that the model does not.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

HEAD = ("option", "type", "default", "meaning")
WIDTHS = (22, 18, 14, 46)
BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))


def rows(model: Any) -> list[tuple[str, str, str, str]]:
    """Option, type with its bounds, default, meaning: in the order of the model."""
    found = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        text = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        bounds = [
            f"{sign} {getattr(rule, word):,}"
            for rule in field.metadata
            for word, sign in BOUNDS
            if getattr(rule, word, None) is not None
        ]
        default = "required" if field.is_required() else repr(field.default)
        found.append((name, ", ".join([text, *bounds]), default, field.description or ""))
    return found


class OptionTable(Directive):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        from omni_async import registry

        model = registry.backend_for(self.arguments[0]).options
        group = nodes.tgroup(
            "", *(nodes.colspec(colwidth=width) for width in WIDTHS), cols=len(HEAD)
        )
        group += nodes.thead("", row(map(nodes.Text, HEAD)))
        group += nodes.tbody("", *(row(cells(option)) for option in rows(model)))
        return [nodes.table("", group)]


def cells(option: tuple[str, str, str, str]) -> list[nodes.Node]:
    name, kind, default, meaning = option
    return [
        nodes.literal(text=name),
        nodes.Text(kind),
        nodes.literal(text=default),
        nodes.Text(meaning),
    ]


def row(texts: Any) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", text)) for text in texts))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("option-table", OptionTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
