"""Long texts that something is hidden in: cut to exact length, opened at sentence ends only."""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from diffattn.data.corpora import load_corpus
from diffattn.data.gutenberg import strip_gutenberg
from diffattn.errors import ConfigError
from diffattn.inference.language_model import LanguageModel
from diffattn.inference.network_reader import ItemError

_MAX_CHARACTERS = 20_000_000
"""Of a corpus; what comes later is not read. About 5 million tokens."""
_BETWEEN_DOCUMENTS = "\n\n"
_SENTENCE_END = re.compile(r"[.!?。！？][\"'”’»)\]]*$")
_NEXT_SENTENCE = re.compile(r"[.!?][\"'”’»)\]]*\s+|\n\s*")
_LAST_CHARACTERS = frozenset(".!?。！？\"'”’»)] \t\n")
_LONGEST_END = 16
"""Characters before a border that decide whether a sentence ends there."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive tokens of a text, and the places where something may be put between them."""

    ids: tuple[int, ...]
    text: str
    """Of these tokens; a character cut by the end stands in it whole."""
    sentence_ends: tuple[int, ...]
    """How many leading tokens make whole sentences; ascending, from 1 to ``len(ids) - 1``."""
    start: int
    """First character, counted in the corpus."""

    def slot(self, depth: float) -> int:
        """Tokens before something hidden at ``depth`` percent: back to the last sentence end.

        Depth 0 is before everything and depth 100 after everything.
        """
        if depth >= 100:
            return len(self.ids)
        return self._back(int(len(self.ids) * depth / 100))

    def random_slots(self, generator: Random, count: int, taken: Collection[int]) -> list[int]:
        """Distinct slots at uniformly random depths, none of them in ``taken``.

        A uniform depth goes back to a sentence's start, so a slot is as likely as the sentence
        after it is long; depths whose slot is taken are drawn again.

        Raises:
            ItemError: The text has too few sentences.
        """
        slots = [0, *self.sentence_ends]
        ends = [*self.sentence_ends, len(self.ids)]
        weights = {a: b - a for a, b in zip(slots, ends, strict=True) if a not in taken}
        if len(weights) < count:
            raise ItemError(
                f"haystack: {len(self.ids)} tokens of text must have {count} free sentence ends, "
                f"got {len(weights)}. Choose a longer text or fewer needles."
            )
        found = []
        for _ in range(count):
            (slot,) = generator.choices(list(weights), list(weights.values()))
            found.append(slot)
            del weights[slot]
        return found

    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the text: equal for equal haystacks."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def _back(self, place: int) -> int:
        index = bisect_right(self.sentence_ends, place)
        return self.sentence_ends[index - 1] if index else 0


@lru_cache(maxsize=2)
def corpus_text(source: str) -> str:
    """All documents of a corpus as one text, without Project Gutenberg's frames.

    Documents follow each other after a blank line, in the corpus's order, up to 20 million
    characters. Windows line ends become ``\\n``.

    Args:
        source: See :func:`diffattn.data.corpora.load_corpus`.

    Raises:
        ConfigError: The source cannot be read.
    """
    parts, size = [], 0
    for document in load_corpus(source):
        parts.append(strip_gutenberg(document.text.replace("\r\n", "\n")).strip())
        size += len(parts[-1]) + len(_BETWEEN_DOCUMENTS)
        if size > _MAX_CHARACTERS:
            break
    return _BETWEEN_DOCUMENTS.join(parts)


def random_start(text: str, generator: Random) -> int:
    """The first sentence or line that begins after a random character; 0 if none does."""
    match = _NEXT_SENTENCE.search(text, generator.randrange(max(1, len(text))))
    return match.end() % len(text) if match else 0


def read_stretch(model: LanguageModel, source: str, start: int, num_tokens: int) -> Stretch:
    """Exactly ``num_tokens`` tokens of a corpus from a character on.

    After its last document a corpus goes on with its first; no text is used twice.

    Args:
        model: Whose tokens are counted. Equal tokenizers get equal stretches.
        source: See :func:`diffattn.data.corpora.load_corpus`.
        start: Character to begin at.
        num_tokens: 1 or more.

    Raises:
        ConfigError: The whole corpus has fewer tokens, or the tokenizer tells no characters.
    """
    text = corpus_text(source)
    longest = len(text) + len(_BETWEEN_DOCUMENTS)
    size = 5 * num_tokens + 64  # characters: enough at once for most texts and tokenizers
    while True:
        piece = text[start : start + size]
        if len(piece) < size:  # the corpus ends here
            piece = (piece + _BETWEEN_DOCUMENTS + text[:start])[:size]
        ids, spans = _encode(model, piece)
        # The last token of a cut text may differ from the one in the whole text.
        if len(ids) > num_tokens or (size >= longest and len(ids) == num_tokens):
            break
        if size >= longest:
            raise ConfigError(
                f"haystack: {source!r} must hold {num_tokens} tokens of {model.label}'s "
                f"tokenizer, got {len(ids)}. Name a longer text."
            )
        size *= 2
    end = spans[num_tokens - 1][1]
    ends = tuple(sentence_ends(piece, spans[:num_tokens]))
    return Stretch(tuple(ids[:num_tokens]), piece[:end], ends, start)


def sentence_ends(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[int]:
    """How many leading tokens make whole sentences.

    A sentence ends after ``.``, ``!`` or ``?``, with closing quotes and brackets, before white
    space (so not within ``3.14`` or ``os.path``), and at a line end. A token may hold the mark
    and the white space after it. Between two places lies more than white space.

    Args:
        text: What was encoded.
        spans: First character of every token and the one after its last.
    """
    last = 0
    for i in range(len(spans) - 1):
        end, following = spans[i][1], spans[i + 1][0]
        if following < end:
            continue  # both are bytes of one character
        if text[end - 1] not in _LAST_CHARACTERS and following == end:
            continue
        before = text[max(0, end - _LONGEST_END) : end]
        # Some tokenizers count white space to no token: then it lies between the two.
        gap = text[end:following]
        inner = before.rstrip(" \t")
        is_line_end = inner.endswith("\n") or "\n" in gap
        is_followed = inner != before or text[end : end + 1].isspace()
        is_end = is_line_end or (is_followed and _SENTENCE_END.search(inner))
        if is_end and text[last:end].strip():
            last = end
            yield i + 1


def insert(
    ids: Sequence[int], pieces: Sequence[tuple[int, Sequence[int]]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Put pieces into a sequence, at places counted in the sequence without them.

    Args:
        ids: The sequence.
        pieces: Place (tokens before it, from 0 to ``len(ids)``; distinct) and tokens of each.

    Returns:
        The new sequence, and where each piece begins and ends in it, in the order given.
    """
    whole = list(ids)
    spans: list[tuple[int, int]] = [(0, 0)] * len(pieces)
    for slot, piece in sorted(pieces, key=lambda one: one[0], reverse=True):
        whole[slot:slot] = piece  # from right to left: places further left stay right
    moved = 0
    for i in sorted(range(len(pieces)), key=lambda i: pieces[i][0]):
        slot, piece = pieces[i]
        spans[i] = (slot + moved, slot + moved + len(piece))
        moved += len(piece)
    return whole, spans


def encode_within(model: LanguageModel, text: str) -> list[int]:
    """Tokens of ``text`` as it stands inside a longer one.

    Tokenizers of the SentencePiece kind put a space before the first word of what they encode;
    so a letter goes first, and its tokens are left out again.
    """
    carrier = model.encode("a")
    whole = model.encode("a" + text)
    return whole[len(carrier) :] if whole[: len(carrier)] == carrier else model.encode(text)


def _encode(model: LanguageModel, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Tokens and their characters; as :meth:`LanguageModel.encode`, special ones stay text."""
    tokenizer: Any = model.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"haystack: sentences need a tokenizer that tells the characters of its tokens (a "
            f"fast one), got {type(tokenizer).__name__} of {model.label}."
        )
    encoded = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True,
        verbose=False,
    )  # fmt: skip
    return encoded["input_ids"], encoded["offset_mapping"]
