"""Running text between which facts and needles are hidden, cut into sentences."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from diffattn.data.corpora import load_corpus
from diffattn.data.gutenberg import strip_gutenberg
from diffattn.errors import ConfigError
from diffattn.inference.language_model import LanguageModel

_CHARACTERS_PER_TOKEN = 16
"""More than any tokenizer packs into one token on average."""
_LEAST_CHARACTERS = 2_000_000
"""Read of large corpora also for short contexts, so that the passages differ."""
_LONGEST_SENTENCE = 60
"""Words; code and tables may go on without a full stop."""
_END = re.compile(r"[.!?][\"')\]”’]*$")


@dataclass(frozen=True)
class Background:
    """Text as words, white space collapsed, with the places where sentences begin."""

    source: str
    words: tuple[str, ...]
    starts: tuple[int, ...]
    """Index of the first word of each sentence, rising from 0."""

    @cached_property
    def text(self) -> str:
        """All of it on one line."""
        return " ".join(self.words)

    def passage(self, first: int, num_words: int) -> list[str]:
        """Sentences from one on, the last one cut so that the words are exactly so many.

        Args:
            first: Number of the first sentence, counted round the text.
            num_words: From 0 to the length of the text, at whose end it goes on at the beginning.

        Raises:
            ConfigError: More words are wanted than there are.
        """
        if num_words > len(self.words):
            raise ConfigError(
                f"{self.source}: must hold {num_words} words for a passage, got {len(self.words)}."
            )
        borders = (*self.starts, len(self.words))
        found: list[str] = []
        at = first % len(self.starts)
        while num_words > 0:
            start, stop = borders[at], borders[at + 1]
            found.append(" ".join(self.words[start : min(stop, start + num_words)]))
            num_words -= stop - start
            at = (at + 1) % len(self.starts)
        return found

    def require_tokens(self, model: LanguageModel, tokens: int, where: str) -> None:
        """Raise unless the text fills so many tokens without repeating itself.

        Raises:
            ConfigError: It does not.
        """
        if len(self.text) >= _CHARACTERS_PER_TOKEN * tokens:
            return
        held = len(model.encode(self.text))
        if held < tokens:
            raise ConfigError(
                f"{where}: the haystack {self.source!r} must hold {tokens} tokens, the longest "
                f"context, got {held}. Name a longer text or set shorter lengths."
            )

    def facts(self) -> dict[str, Any]:
        """What a record says of it; equal facts mean equal text."""
        return {
            "source": self.source,
            "words": len(self.words),
            "sentences": len(self.starts),
            "sha256": self.sha256,
        }

    @cached_property
    def sha256(self) -> str:
        """First 16 hex digits of the hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @cached_property
    def numbers(self) -> frozenset[str]:
        """All runs of digits in the text."""
        return frozenset(re.findall(r"\d+", self.text))


@lru_cache(maxsize=4)
def read_background(source: str, tokens: int) -> Background:
    """The beginning of a corpus, enough for contexts of ``tokens`` tokens.

    Sentences end at ``.``, ``!`` or ``?``, at the end of a document, or after 60 words. Header
    and trailer of Project Gutenberg are left out.

    Args:
        source: See :func:`diffattn.data.corpora.load_corpus`.
        tokens: Longest context.

    Raises:
        ConfigError: The corpus cannot be read.
    """
    words: list[str] = []
    starts: list[int] = []
    characters = 0
    for document in load_corpus(source):
        text = strip_gutenberg(document.text)
        for sentence in _sentences(text.split()):
            starts.append(len(words))
            words += sentence
        characters += len(text)
        if characters >= max(_LEAST_CHARACTERS, _CHARACTERS_PER_TOKEN * tokens):
            break
    return Background(source, tuple(words), tuple(starts))


def _sentences(words: list[str]) -> Iterator[list[str]]:
    start = 0
    for i, word in enumerate(words, start=1):
        if _END.search(word) or i - start == _LONGEST_SENTENCE or i == len(words):
            yield words[start:i]
            start = i


def insert(sentences: list[str], additions: list[tuple[int, str]]) -> list[str]:
    """Sentences with others put before given places, several at one place in their order.

    Args:
        sentences: Any number.
        additions: ``(place, sentence)``, places rising within [0, len(sentences)].
    """
    places = [0, *(place for place, _ in additions), len(sentences)]
    assert all(a <= b for a, b in pairwise(places)), "places must rise"
    found: list[str] = []
    done = 0
    for place, sentence in additions:
        found += [*sentences[done:place], sentence]
        done = place
    return found + sentences[done:]
