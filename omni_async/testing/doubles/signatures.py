"""Signatures: whether a double, and so what runs on it, has the names that a vendor's wheel has.

In: a wheel's file, classes of a double. Out: what differs, in words.
Never: imports a vendor that its machine cannot run, downloads anything.

A Python layer is read as text, by its syntax. Of a compiled library only its strings are read: each name that it
gives to Python, and each keyword, stands there between two zeros. So a name that has gone is seen; what the library
does with it is not.
"""

from __future__ import annotations

import ast
import inspect
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_NONE = inspect.Parameter.empty

Surface = dict[str, Any]
"""Names of a double's module, and what they stand for."""


class Parameter(NamedTuple):
    """One parameter of a function, without its type."""

    name: str
    default: str = ""
    """As it is written; empty where there is none."""

    def __str__(self) -> str:
        return f"{self.name}={self.default}" if self.default else self.name


class Wheel:
    """A wheel's file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = re.match(r"(\w+?)-([^-]+)-", path.name)
        if found is None:
            raise ValueError(f"{path.name} is not the name of a wheel")
        self.package, self.version = found[1], found[2]
        with zipfile.ZipFile(path) as files:
            self.names = files.namelist()

    def bytes(self, name: str) -> bytes:
        """A file of the wheel."""
        with zipfile.ZipFile(self.path) as files:
            return files.read(name)

    def text(self, name: str) -> str:
        """A file of the wheel, of source."""
        return self.bytes(name).decode()


def methods_of(source: str, name: str) -> dict[str, list[Parameter]]:
    """Public methods of a class as its source declares them, ``__init__`` among them, without ``self``.

    Raises:
        KeyError: the source has no such class.
    """
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                one.name: _declared(one.args)
                for one in node.body
                if isinstance(one, ast.FunctionDef) and _is_public(one.name)
            }
    raise KeyError(name)


def exported(source: str) -> set[str]:
    """Names that a module imports or defines at its outermost level."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {one.asname or one.name for one in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
    return found


def offered(cls: type) -> dict[str, list[Parameter]]:
    """The same of a class that is there."""
    methods: dict[str, list[Parameter]] = {}
    for name, member in inspect.getmembers(cls, inspect.isfunction):
        if _is_public(name):
            parameters = list(inspect.signature(member).parameters.values())[1:]
            methods[name] = [Parameter(_starred(one), _default(one)) for one in parameters]
    return methods


def differing_methods(cls: type, source: str, name: str) -> Iterator[str]:
    """What a double's class has otherwise than the vendor's source."""
    try:
        there = methods_of(source, name)
    except KeyError:
        yield f"there is no class {name}"
        return
    for method, parameters in offered(cls).items():
        if method not in there:
            yield f"{name} has no method {method}"
        elif parameters != there[method]:
            ours, theirs = (", ".join(map(str, one)) for one in (parameters, there[method]))
            yield f"{name}.{method} takes ({theirs}), and not ({ours})"


def words_of(surface: Surface, leave_out: Iterable[str] = ()) -> set[str]:
    """Every name that a compiled module has to know for this surface: classes, their members, their keywords.

    Args:
        leave_out: classes whose members are not compiled.
    """
    left_out = set(leave_out)
    words = {name for name in surface if name not in left_out}
    for name, cls in surface.items():
        if name in left_out or not inspect.isclass(cls):
            continue
        words |= {member for member in dir(cls) if not member.startswith("_")}
        if name.endswith("Config"):
            words |= set(inspect.signature(cls).parameters)
    return words


def missing_words(words: Iterable[str], library: bytes) -> list[str]:
    """Those that are no string of a compiled library."""
    return sorted(word for word in words if b"\0" + word.encode() + b"\0" not in library)


def _is_public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


def _declared(arguments: ast.arguments) -> list[Parameter]:
    plain = [*arguments.posonlyargs, *arguments.args][1:]
    defaults = [""] * len(plain) + [ast.unparse(one) for one in arguments.defaults]
    listed = [
        Parameter(one.arg, default)
        for one, default in zip(plain, defaults[len(defaults) - len(plain) :], strict=True)
    ]
    if arguments.vararg is not None:
        listed.append(Parameter(f"*{arguments.vararg.arg}"))
    for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        listed.append(Parameter(one.arg, "" if value is None else ast.unparse(value)))
    if arguments.kwarg is not None:
        listed.append(Parameter(f"**{arguments.kwarg.arg}"))
    return listed


def _starred(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=_NONE, default=_NONE))


def _default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is _NONE else repr(parameter.default)
