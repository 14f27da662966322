"""The text of each token: characters, or bytes where a token ends within a character."""

import re
from collections.abc import Sequence
from typing import Any

from diffattn.lab.data.byte_pairs import BYTE_OF

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"
"""SentencePiece's sign for a space."""


def token_pieces(tokenizer: Any, ids: Sequence[int]) -> list[str | bytes]:
    """Text of every token by itself, spaces included.

    ``tokenizer.decode`` of single tokens loses the space before a word in tokenizers of the
    SentencePiece kind, and gives the same sign for every part of a cut character. So the entries
    of the vocabulary are read; byte-level tokenizers write bytes as GPT-2's letters.

    Args:
        tokenizer: Of Hugging Face, fast or slow.
        ids: Tokens.

    Returns:
        Text, or bytes that are no whole characters.
    """
    special = {int(i) for i in tokenizer.all_special_ids}
    added = {**getattr(tokenizer, "added_tokens_decoder", {})}
    is_byte_level = _is_byte_level(tokenizer)
    pieces: list[str | bytes] = []
    for token, entry in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if entry is None:  # a model may have more ids than its tokenizer
            pieces.append(f"<id {token}>")
        elif token in special or token in added:
            pieces.append(str(entry))
        elif is_byte_level and all(c in BYTE_OF for c in entry):
            pieces.append(_text_of(bytes(BYTE_OF[c] for c in entry)))
        elif match := _BYTE_TOKEN.fullmatch(entry):
            pieces.append(_text_of(bytes.fromhex(match[1])))
        else:
            pieces.append(entry.replace(_SPACE, " "))
    return pieces


def _text_of(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether the vocabulary is written in GPT-2's letters for bytes."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()
