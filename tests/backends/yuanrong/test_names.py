"""Names: whatever a key is, the datasystem takes what it is called, and no two are called the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omni_async import UsageError
from omni_async.backends.yuanrong.names import LONGEST, name_of, plain_name_of

ACCEPTED = re.compile(r"[a-zA-Z0-9\-_!@#%\^\*\(\)\+\=\:;]{1,255}")
"""What the vendor says it takes."""
TEXTS = st.text(min_size=1, max_size=400)


def test_names_without_odd_characters_are_the_texts_themselves() -> None:
    for text in ("req-1:0_1", "a" * 255, "A9-_!@#^*()+=:;"):
        assert name_of(text) == plain_name_of(text) == text


@given(TEXTS)
@example("a/b:0_1")
@example("100%:0_1")
@example("%2F")
@example("%-" + "0" * 64)
@example("é\ud800\0\n ~.")
@example("日" * 400)
def test_any_text_has_a_name(text: str) -> None:
    assert ACCEPTED.fullmatch(name_of(text))


@given(st.lists(TEXTS, min_size=2, max_size=20, unique=True))
@example(["a/b", "a%2Fb", "a%252Fb"])
@example(["x" * 256, "x" * 257, "x" * 256 + "/", "x" * 255])
def test_different_texts_have_different_names(texts: list[str]) -> None:
    assert len({name_of(text) for text in texts}) == len(texts)


def test_long_texts_keep_their_beginning() -> None:
    name = name_of("request-17/" + "x" * 1200)
    assert len(name) == LONGEST
    assert "request-17%2Fxxx" in name


@pytest.mark.parametrize("text", ["a/b:0_1", "a b", "é:0_1", "a" * 256, "", "a\n"])
def test_names_of_others_are_taken_as_they_are_or_not_at_all(text: str) -> None:
    with pytest.raises(UsageError, match="255 characters"):
        plain_name_of(text)
