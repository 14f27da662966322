"""Byte-level BPE by tiktoken, where its ids are those of the ``tokenizers`` library."""

import importlib.util
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""How GPT-2 cuts a text into words, and ``ByteLevel`` with ``use_regex``."""
_CLASSES = ("a", "1", ".")
"""A character is a letter, a digit or a sign if it makes one word with these, else white space."""
_OPTIONS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "byte_fallback",
    "ignore_merges",
)
"""Of the model in a ``tokenizer.json``: GPT-2 has none of them."""
_PRINTED = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_UNPRINTED = [byte for byte in range(256) if byte not in _PRINTED]
BYTE_OF = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + place): byte for place, byte in enumerate(_UNPRINTED)
}
"""The character that stands for each byte in a ``tokenizer.json``, as in GPT-2's."""
_BYTES = [bytes([byte]) for byte in BYTE_OF.values()]


class TextEncoder:
    """Encodes texts as nothing but text.

    Byte-level BPE as in GPT-2, which our own tokenizers are, is left to tiktoken, five times as
    fast, if it is installed and the ids are the same under these conditions:

    - Every merge makes a token of its own, and every token by itself is merged into just that.
      Then neighbours whose bytes make up a token are always the pair of its merge, and it does not
      matter whether pairs are looked up or their bytes.
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
        """Ids of each text, uint32 ``[n]``.

        Args:
            texts: Any strings that UTF-8 can express.
        """
        ids: list[np.ndarray | None] = [None] * len(texts)
        if self.fast:
            self._compare_classes(set("".join(texts)) - self._compared)
            ids = [self._fast_ids(text) for text in texts]
        slow = [text for text, of in zip(texts, ids, strict=True) if of is None]
        encodings = iter(self._encoder.encode_batch_fast(slow, add_special_tokens=False))
        return [np.array(next(encodings).ids, np.uint32) if of is None else of for of in ids]

    def _fast_ids(self, text: str) -> np.ndarray | None:
        if self._differing and not self._differing.isdisjoint(text):
            return None
        try:
            return self._ids[self._fast.encode_to_numpy(text)]
        except ValueError:  # tiktoken's pattern has no room for a million blanks in a row
            return None

    def _compare_classes(self, characters: set[str]) -> None:
        """Find out whether both libraries make the same words of new characters."""
        if not characters:
            return
        pairs = {c: [of_class + c for of_class in _CLASSES] for c in characters}
        as_word = _tiktoken(_BYTES + [pair.encode() for of in pairs.values() for pair in of])
        words = self._encoder.pre_tokenizer.pre_tokenize_str
        for character, of in pairs.items():
            if any((len(as_word.encode_ordinary(p)) == 1) != (len(words(p)) == 1) for p in of):
                self._differing.add(character)
        self._compared |= characters


def _tokens_by_rank(encoder: Any) -> dict[bytes, int] | None:
    """Tokens and their ids in the order of their merges; ``None``: see the conditions above."""
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
    """An encoding whose ids are the places of its tokens, the first 256 of which are the bytes."""
    import tiktoken

    ranks = {token: rank for rank, token in enumerate(dict.fromkeys(tokens))}
    return tiktoken.Encoding("diffattn", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={})
