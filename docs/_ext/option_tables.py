"""A Sphinx directive that writes a connector's options from its pydantic model.

In: a connector name or alias. Out: a table of option, type, default and meaning.
Never: says anything that the model does not.
"""

from __future__ import annotations

from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx


def rows(model: Any) -> list[tuple[str, str, str, str]]:
    """Option, type with its bounds, default, meaning: in the order of the model."""
    found = []
    for name, field in model.model_fields.items():
        kind = getattr(field.annotation, "__name__", None)
        if kind is None or "|" in str(field.annotation):
            kind = str(field.annotation).replace("typing.", "")
        bounds = [
            f"{sign} {getattr(rule, word)}"
            for rule in field.metadata
            for word, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
            if getattr(rule, word, None) is not None
        ]
        default = "required" if field.is_required() else repr(field.default)
        found.append((name, ", ".join([kind, *bounds]), default, field.description or ""))
    return found


class OptionTable(Directive):
    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        from omni_async import registry

        backend = registry.backend_for(self.arguments[0])
        lines = [".. list-table::", "   :header-rows: 1", "   :widths: 22 18 14 46", ""]
        for row in [("option", "type", "default", "meaning"), *rows(backend.options)]:
            marked = (
                row
                if row[0] == "option"
                else (f"``{row[0]}``", *(row[1:2]), f"``{row[2]}``", row[3])
            )
            for index, cell in enumerate(marked):
                lines.append(f"   {'* -' if index == 0 else '  -'} {cell}")
        node = nodes.Element()
        self.state.nested_parse(StringList(lines, source="options"), self.content_offset, node)
        return node.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("option-table", OptionTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
