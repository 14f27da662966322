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
    answer_prefix: str  # the beginning of the answer, which the model completes
    references: tuple[str, ...]  # strings that a right output contains
    answer: str  # a right answer after the prefix
    candidates: tuple[str, ...] | None = None  # distinct values in the context, if it has any
    listed: tuple[str, ...] | None = None  # words in order, with repeats, if the context is a list
    documents: str | None = None  # their text, if the context has documents
    notes: Mapping[str, Any] = field(default_factory=dict)  # further fields of the row


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a file, and the documents with its answer."""

    text: str
    answers: tuple[str, ...]
    required: tuple[int, ...]  # indices of the documents that the file gives with the question
    near: tuple[int, ...]  # of other documents of the same article, which are added first


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
    from_beginning: bool = False  # whether every passage begins where the background does
    numbers: frozenset[str] = frozenset()  # of the background; no value of a needle is among them
    words: WordList | None = None  # of ``cwe``
    keys: tuple[str, ...] | None = None  # of needles. Default: adjective-noun pairs
    questions: Mapping[str, QuestionFile] = field(default_factory=dict)  # by task


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
        """Share of the references in the output, or by ``match`` whether any is; case is ignored.

        Source: NVIDIA/RULER, string_match_all and string_match_part.
        """
        right = [reference.lower() in output.lower() for reference in references]
        return float(any(right)) if self.match == "part" else sum(right) / len(right)

    def guesses(self, model: LanguageModel, sample: Sample, output: str) -> dict[str, float]:
        """Scores of guesses that copy from the context and ignore the question.

        They name random values, the first different words of a list, or a random stretch of
        documents: as many as are asked for or ``max_new_tokens``, and as many as ``output`` does.
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
        named = sum(word.lower() in output.lower() for word in words)
        if sample.listed is None:
            return guess_shares(len(wanted), len(words), named)
        first, most = (
            self.score(" ".join(words[:count]), wanted) for count in (len(wanted), named)
        )
        return {GUESSES[0]: first, NAMED: most}
