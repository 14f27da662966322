"""What RULER's tasks have in common: samples, random streams, and where their content is from."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from diffattn.evaluation.long_context.haystack import HaystackWords

DEPTHS = tuple(round(100 * i / 39) for i in range(40))
"""Percent of the context: 40 linear places, of which a sample uses each at most once."""
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One question with its context."""

    question: str
    answer_prefix: str
    """What the answer begins with; the model completes it."""
    references: tuple[str, ...]
    """What is looked for in the output."""
    answer: str
    """A right answer as it would follow the prefix."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """For the reader of the log."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Random numbers of one sample, one stream per purpose.

    A longer context so only adds to a shorter one, which is what the fit of the length relies on.
    """

    key: str

    def __call__(self, purpose: str) -> random.Random:
        """The stream of a purpose, from its beginning."""
        return random.Random(f"{self.key}-{purpose}")


class Questions(Protocol):
    """Questions over documents: a data set for ``qa_1`` and ``qa_2``."""

    def __len__(self) -> int: ...

    def own_documents(self, index: int) -> int:
        """Documents that a question must come with."""

    @property
    def num_documents(self) -> int:
        """Distinct documents of the file."""

    def ask(self, index: int, count: int, streams: Streams) -> tuple[str, list[str], list[str]]:
        """Question, documents in order and accepted answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """Where content is from."""

    background: HaystackWords | None = None
    numbers: frozenset[str] = frozenset()
    """Seven-digit numbers of the background: no value may be one of them."""
    words: Sequence[str] | None = None
    """Words of the user's list. Default: generated ones."""
    questions: Mapping[str, Questions] = field(default_factory=dict)
    """By task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RulerTask(ABC):
    """One kind of sample, of any length."""

    name: str
    max_new_tokens: int
    match: str = "all"
    """``"all"``: the share of the references found. ``"part"``: whether any is found."""

    @abstractmethod
    def least(self, material: Material, index: int) -> int:
        """Units of context that a sample must have."""

    def most(self, material: Material, index: int, length: int) -> int:
        """Units that there are, for contexts of ``length`` tokens."""
        return length

    @abstractmethod
    def build(
        self, units: int, length: int, index: int, streams: Streams, material: Material
    ) -> Sample:
        """A sample with so many units of context.

        Args:
            units: Words, lines or documents, from ``least`` to ``most``.
            length: Tokens aimed at; some tasks scale with it.
            index: Number of the sample.
            streams: Its random numbers.
            material: Its content.
        """


def found_share(output: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the output, upper and lower case alike.

    Source: RULER, string_match_all.
    """
    text = output.lower()
    return sum(reference.lower() in text for reference in references) / len(references)


def found_any(output: str, references: Sequence[str]) -> float:
    """1 if any reference occurs in the output, upper and lower case alike, else 0.

    Source: RULER, string_match_part.
    """
    text = output.lower()
    return float(any(reference.lower() in text for reference in references))
