"""Samples of RULER's tasks, and their sources: words and questions."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from diffattn.lab.evaluation.long_context.haystack import HaystackWords
from diffattn.lab.evaluation.long_context.ruler.words import WordList
from diffattn.lab.evaluation.metrics import GUESSES, NAMED, guess_shares
from diffattn.lab.inference.language_model import LanguageModel

DEPTHS = tuple(round(100 * i / 39) for i in range(40))
"""Depths of needles in percent: 40 evenly spaced, each used at most once per sample."""
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One question with its context."""

    question: str
    answer_prefix: str
    """The beginning of the answer, which the model completes."""
    references: tuple[str, ...]
    """Strings that a right output contains."""
    answer: str
    """A right answer after the prefix."""
    candidates: tuple[str, ...] | None = None
    """Distinct values or variables in the context; ``None`` if it is a list or documents."""
    listed: tuple[str, ...] | None = None
    """Words of a list in order, with repeats; ``None`` if the context is no list."""
    documents: str | None = None
    """Text of the documents; ``None`` if the context has none."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the row in the log."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a file, and the documents with its answer."""

    text: str
    answers: tuple[str, ...]
    required: tuple[int, ...]
    """Indices of the documents that the file gives with the question."""
    near: tuple[int, ...]
    """Indices of other documents of the same article, which are added first."""


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """Questions and documents of one file."""

    path: str
    documents: tuple[str, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """Sources from which samples are built."""

    background: HaystackWords | None = None
    from_beginning: bool = False
    """Whether every passage begins at the beginning of the background."""
    numbers: frozenset[str] = frozenset()
    """All numbers of the background, as strings of digits. No value of a needle is one of them."""
    words: WordList | None = None
    """Words of ``cwe``; ``None`` if this task is not run."""
    keys: tuple[str, ...] | None = None
    """Keys of needles. Default: adjective-noun pairs."""
    questions: Mapping[str, QuestionFile] = field(default_factory=dict)
    """Task to its file of questions."""


def found_share(output: str, references: Sequence[str]) -> float:
    """Share of the references in the output, regardless of case: RULER's string_match_all."""
    text = output.lower()
    return sum(reference.lower() in text for reference in references) / len(references)


def found_any(output: str, references: Sequence[str]) -> float:
    """1 if any reference is in the output, regardless of case, else 0: string_match_part."""
    text = output.lower()
    return float(any(reference.lower() in text for reference in references))


@dataclass(frozen=True, kw_only=True, slots=True)
class RulerTask(ABC):
    """A task: it builds samples from units of context, such as words, lines or documents."""

    name: str
    max_new_tokens: int
    match: str = "all"
    """``"all"`` scores the share of references found, ``"part"`` whether any is found."""

    @abstractmethod
    def units(self, material: Material, index: int, length: int) -> tuple[int, int]:
        """Fewest and most units of context that a sample of ``length`` tokens can have."""

    @abstractmethod
    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        """Build a sample with so many units; some tasks also depend on ``length`` in tokens.

        Each purpose has a random generator of its own, so that a longer context has all content of
        a shorter one, as the search for the length requires. ``seed`` seeds them all.
        """

    def score(self, output: str, references: Sequence[str]) -> float:
        """The score of an output."""
        return (found_any if self.match == "part" else found_share)(output, references)

    def guesses(self, model: LanguageModel, sample: Sample, output: str) -> dict[str, float]:
        """Scores of guesses that copy from the context and ignore the question.

        They name random values, the first different words of a list, or a random stretch of
        documents. ``guess`` names as many as the question asks for, or copies ``max_new_tokens``
        tokens; :data:`~diffattn.lab.evaluation.metrics.NAMED` names or copies as much as ``output``
        does. There is no guess if the question asks for all values.
        """
        wanted = sample.references
        if sample.documents is not None:
            ids, written = model.encode(sample.documents), len(model.encode(output))

            def copied(size: int) -> float:
                stretches = (model.decode(ids[i : i + size]) for i in range(0, len(ids), size))
                return fmean(self.score(text, wanted) for text in stretches)

            named_score = copied(written) if written else 0.0
            return {GUESSES[0]: copied(self.max_new_tokens), NAMED: named_score}
        words = sample.candidates or tuple(dict.fromkeys(sample.listed or ()))
        # A word counts as named if the score would find it in the output.
        named = round(found_share(output, words) * len(words))
        if sample.listed is None:
            return guess_shares(len(wanted), len(words), named)
        first, most = (
            self.score(" ".join(words[:count]), wanted) for count in (len(wanted), named)
        )
        return {GUESSES[0]: first, NAMED: most}
