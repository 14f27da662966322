"""Byte-level BPE by tiktoken, where its ids are those of the ``tokenizers`` library."""

import importlib.util
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2 cuts a text into words, and ``ByteLevel`` with ``use_regex``."""
_CLASSES = ("a", "1", ".")
"""A letter, a digit and a sign: a character's class shows in whether it joins them to one word."""
_OPTIONS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
)
"""Options of the model in a ``tokenizer.json`` that GPT-2 does not have."""
_PRINTED = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_UNPRINTED = [byte for byte in range(256) if byte not in _PRINTED]
BYTE_OF = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + place): byte for place, byte in enumerate(_UNPRINTED)
}
"""The character that stands for each byte in a ``tokenizer.json``, as in GPT-2's."""
_BYTES = [bytes([byte]) for byte in BYTE_OF.values()]


class TextEncoder:
    """Encodes plain text.

    Byte-level BPE as in GPT-2 is left to tiktoken, five times as fast, if it is installed and gives
    the same ids. The conditions:

    - Every merge makes a new token, and the bytes of every token are merged into this token. Then
      a lookup by bytes, as in tiktoken, equals a lookup by pairs.
    - The libraries know different versions of Unicode. A text with a character that they class
      differently is encoded by ``tokenizers``.

    Args:
        encoder: See :func:`diffattn.lab.data.tokenizer.plain_encoder`.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self._tokens = _tokens_by_rank(encoder)
        self._compared: set[str] = set()
        self._differing: set[str] = set()
        if self._tokens is not None:
            self._fast = _tiktoken(self._tokens)
            self._ids = np.array(list(self._tokens.values()), dtype=np.uint32)

    @property
    def fast(self) -> bool:
        """Whether tiktoken encodes."""
        return self._tokens is not None

    def __call__(self, texts: list[str]) -> list[np.ndarray]:
        """Ids of each text, uint32 ``[n]``."""
        ids: list[np.ndarray | None] = [None] * len(texts)
        if self.fast:
            self._compare_classes(set("".join(texts)) - self._compared)
            ids = [self._fast_ids(text) for text in texts]
        slow = [text for text, fast in zip(texts, ids, strict=True) if fast is None]
        encodings = iter(self._encoder.encode_batch_fast(slow, add_special_tokens=False))
        return [np.array(next(encodings).ids, np.uint32) if x is None else x for x in ids]

    def _fast_ids(self, text: str) -> np.ndarray | None:
        if self._differing and not self._differing.isdisjoint(text):
            return None
        try:
            return self._ids[self._fast.encode_to_numpy(text)]
        except ValueError:  # tiktoken's pattern has no room for a million blanks in a row
            return None

    def _compare_classes(self, characters: set[str]) -> None:
        """Find out whether both libraries cut new characters into the same words."""
        if not characters:
            return
        pairs = {c: [member + c for member in _CLASSES] for c in characters}
        fast = _tiktoken(_BYTES + [pair.encode() for texts in pairs.values() for pair in texts])
        words = self._encoder.pre_tokenizer.pre_tokenize_str
        for character, texts in pairs.items():
            if any((len(fast.encode_ordinary(p)) == 1) != (len(words(p)) == 1) for p in texts):
                self._differing.add(character)
        self._compared |= characters


def _tokens_by_rank(encoder: Any) -> dict[bytes, int] | None:
    """Tokens and their ids in the order of their merges; ``None``: a condition does not hold."""
    if importlib.util.find_spec("tiktoken") is None:
        return None
    definition = json.loads(encoder.to_str())
    model, words = definition["model"], definition["pre_tokenizer"]
    if (
        definition["normalizer"] is not None
        or not words
        or (words["type"], words.get("use_regex")) != ("ByteLevel", True)
        or words["add_prefix_space"]
        or model["type"] != "BPE"
        or any(model[key] for key in _OPTIONS)
        or any(not token["special"] for token in definition["added_tokens"])
    ):
        return None
    vocab = model["vocab"]
    spelled = [*BYTE_OF, *(left + right for left, right in model["merges"])]
    known = set(BYTE_OF)
    for left, right in model["merges"]:
        if left not in known or right not in known or left + right in known:
            return None
        known.add(left + right)
    special = {token["content"] for token in definition["added_tokens"]}
    if known | special != vocab.keys() | special or known & special:
        return None
    if any(len(encoder.model.tokenize(token)) != 1 for token in spelled):
        return None
    return {bytes(map(BYTE_OF.__getitem__, token)): vocab[token] for token in spelled}


def _tiktoken(tokens: Iterable[bytes]) -> Any:
    """An encoding whose ids are the indices of ``tokens``, which begin with the 256 bytes."""
    import tiktoken

    ranks = {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}
    return tiktoken.Encoding("diffattn", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})
