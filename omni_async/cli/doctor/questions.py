"""Which backends are asked what.

In: names, or a deploy file's edges. Out: subjects: a backend, its options, whether anybody wants it.
Never: opens a backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ... import registry
from ...abc import Options, StoreOptions
from ...deploy import Connector, StagePlan
from ...model import Role
from ..on_this_host import anywhere
from .words import Question

BOTH: tuple[Role, Role] = ("sender", "receiver")


class Subject(NamedTuple):
    """One backend with one set of options."""

    about: str
    backend: str
    questions: tuple[Question, ...]
    asked: bool
    """Whether somebody wants it; else what is missing for it is only worth a warning."""


def of_backends(names: Iterable[str], *, asked: bool) -> Iterator[Subject]:
    """Backends as such, by alias: with options that need no hardware where there are such, then with the
    usual ones, which nobody has asked for in so many words."""
    for name in names:
        model = registry.options_for(name)
        bare = anywhere(model)
        yield Subject(name, name, _asked_as(model, BOTH, bare), asked)
        if bare and _usual(model) != bare:
            yield Subject(name, name, _asked_as(model, BOTH, {}), False)


def of_stages(plans: Sequence[StagePlan]) -> list[Subject]:
    """The connectors of these stages, each asked once for what it is used as."""
    found: list[tuple[Connector, list[Role]]] = []
    for plan in plans:
        ends: list[tuple[Connector, Role]] = []
        for wire in plan.inputs:
            ends.append((wire.receiver, "receiver"))
        for wire in plan.outputs:
            ends.append((wire.sender, "sender"))
        for connector, role in ends:
            for known, roles in found:
                if (known.name, known.settings) == (connector.name, connector.settings):
                    roles += [role] if role not in roles else []
                    break
            else:
                found.append((connector, [role]))
    return [
        Subject(
            about_connector(connector),
            connector.name,
            _asked_as(type(connector.settings), roles, connector.options),
            True,
        )
        for connector, roles in found
    ]


def about_connector(connector: Connector) -> str:
    """What a connector of a deploy file is called."""
    return f"{connector.alias} ({connector.name})" if connector.alias else connector.name


def _asked_as(
    model: type[Options], roles: Sequence[Role], options: dict[str, Any]
) -> tuple[Question, ...]:
    """One question for each role; the two ends of a store need the same."""
    some = roles[:1] if issubclass(model, StoreOptions) else roles
    return tuple(Question(role, options) for role in some)


def _usual(model: type[Options]) -> dict[str, Any]:
    """The default values of the options that :func:`anywhere` sets."""
    return {key: model.model_fields[key].default for key in anywhere(model)}
