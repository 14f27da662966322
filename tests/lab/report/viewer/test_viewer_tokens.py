"""Nothing of a token is invisible, and nothing acts on its neighbours."""

import unicodedata

import pytest

from diffattn.lab.report.viewer.tokens import ends_line, shown


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        (" the", "␣the"),
        ("\n\t ", "⏎⇥␣"),
        ("\r", "␍"),
        ("\0\x1b\x7f", "␀␛␡"),
        ("\x85\u2028\u00a0\u200b\ufeff", "‹U+0085›‹U+2028›‹U+00A0›‹U+200B›‹U+FEFF›"),
        ("\u202eabc", "‹U+202E›abc"),
        ("\ud800", "‹U+D800›"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        (b"\xe2\x82", "‹E2 82›"),
        ("", "∅"),
        ("<script>", "<script>"),
        ("猫🐱", "猫🐱"),
    ],
)
def test_tokens_as_shown(piece, text):
    assert shown(piece) == text


def test_no_character_is_shown_invisible():
    for code in [*range(0x3000), *range(0xE000, 0xE010), *range(0xFE00, 0x10000), 0xE0001]:
        for character in shown(chr(code)):
            category = unicodedata.category(character)
            assert category[0] not in "CZ", hex(code)


def test_lines_end_where_the_text_does():
    assert [ends_line(piece) for piece in ("a\n", "\n", "\na", "", b"\n")] == [
        True, True, False, False, False,
    ]  # fmt: skip
