"""Text that terminals can show, and how wide it is there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_async.cli.config.text import cells, clipped, columns, spelled


def test_widths() -> None:
    assert columns("stage") == 5
    assert columns("語音") == 4
    assert columns("e\N{COMBINING ACUTE ACCENT}") == 1
    assert cells("語e\N{COMBINING ACUTE ACCENT}") == ["語", "", "e\N{COMBINING ACUTE ACCENT}"]
    assert cells("\N{COMBINING ACUTE ACCENT}a") == ["a"]
    assert cells("語\N{COMBINING ACUTE ACCENT}") == ["語\N{COMBINING ACUTE ACCENT}", ""]


def test_what_cannot_be_shown_is_spelled() -> None:
    assert spelled("a\nb\x1b[0m") == r"a\nb\x1b[0m"
    assert spelled("2 × 4…", "ascii") == "2 x 4..."
    assert spelled("語", "latin-1") == r"\u8a9e"
    assert spelled("é", "latin-1") == "é"


@given(st.text(), st.sampled_from(["utf-8", "ascii", "cp437", "latin-1"]))
def test_every_text_can_be_printed(text: str, encoding: str) -> None:
    shown = spelled(text, encoding)
    assert shown.isprintable()
    shown.encode(encoding)
    assert len(cells(shown)) == columns(shown)


@given(st.text(min_size=1), st.integers(3, 40))
def test_clipped_text_is_as_long_as_asked(text: str, width: int) -> None:
    assert len(clipped(text, width)) == min(len(text), width)
    assert clipped(text, width)[0] == text[0]
