"""Variables that vendors read: whether their values mean something.

In: names and an environment. Out: findings; none where a variable is not set.
Never: sets one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...abc import Finding
from ...abc.findings import fault, ok


def number(environ: Mapping[str, str], name: str, *, least: int = 1) -> Iterator[Finding]:
    """A variable that is a whole number."""
    text = environ.get(name)
    if text is None:
        return
    try:
        fine = int(text) >= least
    except ValueError:
        fine = False
    if fine:
        yield ok(name, f"set to {text}")
    else:
        yield fault(
            name,
            f"set to {text!r}, which is no whole number from {least} on",
            f"export {name}={max(least, 1)} or more, or unset {name}",
        )


def choice(
    environ: Mapping[str, str], name: str, values: Sequence[str], effect: str
) -> Iterator[Finding]:
    """A variable that knows a few values."""
    text = environ.get(name)
    if text is None:
        return
    if text in values:
        yield ok(name, f"set to {text}: {effect}")
    else:
        yield fault(
            name,
            f"set to {text!r}; it knows {', '.join(values)}",
            f"export {name}={values[-1]}, or unset {name}",
        )
