"""Tokens as a reader sees them: nothing invisible, nothing that acts on its neighbours."""

import unicodedata

from diffattn.lab.report.page.wording import WHITE_SPACE

_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
_COMBINING = {"Mn", "Mc", "Me"}
_CARRIER = "◌"
"""Carries a combining mark whose letter is in another token."""


def shown(piece: str | bytes) -> str:
    """Make white space, control characters and bytes of a token visible.

    Args:
        piece: Text, or bytes that are no whole characters.

    Returns:
        Plain text: ``␣the``, ``⏎``, ``␀``, ``‹U+202E›``, ``‹E2 82›``, and ``∅`` if it is empty.
    """
    if isinstance(piece, bytes):
        return f"‹{piece.hex(' ').upper()}›"
    text = "".join(map(_shown_character, piece))
    if piece and unicodedata.category(piece[0]) in _COMBINING:
        text = _CARRIER + text
    return text or "∅"


def ends_line(piece: str | bytes) -> bool:
    """Whether a line break follows a token."""
    return isinstance(piece, str) and piece.endswith("\n")


def _shown_character(character: str) -> str:
    code = ord(character)
    if code in WHITE_SPACE:
        return WHITE_SPACE[code]
    if code < 0x20:
        return chr(0x2400 + code)  # its picture
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in _INVISIBLE:
        return f"‹U+{code:04X}›"
    return character
