"""What a connector's ``extra`` holds: options that are checked, knobs that pass through.

In: keys and values of ``extra``, the options model of its connector. Out: options, or what is wrong.
Never: changes a knob, knows a place in a file.
"""

from __future__ import annotations

import difflib
import functools

from .. import registry
from ..abc import Options
from ..abc.wrong_options import Wrong, kind_of, nearest, validate
from .known_knobs import KNOBS, Knob

__all__ = ["KNOBS", "Knob", "Wrong", "judge", "kind_of", "validate"]

_LIKE_AN_OPTION = 0.8
_LIKE_A_WORD = 0.6
_LIKE_A_KNOB = 0.9

_OTHER_WORDS = {"protocol": "proto", "proto": "protocol", "backend_type": "backends"}
"""The same thing is called differently by another connector."""


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
