"""Samples of RULER's tasks, and their sources: words, questions and random streams."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from diffattn.lab.evaluation.long_context.haystack import HaystackWords
from diffattn.lab.evaluation.long_context.ruler.words import WordList

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


Streams = Callable[[str], Random]
"""Purpose to a new random generator of one sample, with a seed for each purpose.

So a longer context has all content of a shorter one, as the search for the length requires.
"""


def streams_of(key: str) -> Streams:
    """The random streams of the sample with this key."""
    return lambda purpose: Random(f"{key}-{purpose}")


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

    def __len__(self) -> int:
        return len(self.questions)

    def shuffled(self, draw: Random) -> "QuestionFile":
        """A copy with the questions in random order."""
        return replace(self, questions=tuple(draw.sample(self.questions, len(self.questions))))

    def ask(self, index: int, count: int, streams: Streams) -> tuple[str, list[str], list[str]]:
        """Text of question ``index``, ``count`` documents in random order, and accepted answers.

        The question's documents are chosen first, then documents of its article, then others.
        """
        question = self.questions[index]
        taken = {*question.required, *question.near}
        near = list(question.near)
        others = [i for i in range(len(self.documents)) if i not in taken]
        streams("near").shuffle(near)
        streams("others").shuffle(others)
        chosen = [*question.required, *near, *others][:count]
        streams("order").shuffle(chosen)
        return question.text, [self.documents[i] for i in chosen], list(question.answers)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class RulerTask(ABC):
    """A task: it builds samples from units of context, such as words, lines or documents."""

    name: str
    max_new_tokens: int
    match: str = "all"
    """``"all"`` scores the share of references found, ``"part"`` whether any is found."""

    @abstractmethod
    def least(self, material: Material, index: int) -> int:
        """Fewest units of context that a sample can have."""

    def most(self, material: Material, index: int, length: int) -> int:
        """Most units of context that a sample of ``length`` tokens can have."""
        return length

    @abstractmethod
    def build(
        self, units: int, length: int, index: int, streams: Streams, material: Material
    ) -> Sample:
        """Build sample ``index`` with ``units`` units of context, from ``least`` to ``most``.

        ``length`` is the wanted number of tokens; the content of some tasks depends on it.
        """


def found_share(output: str, references: Sequence[str]) -> float:
    """Share of the references that occur in the output, regardless of case.

    Source: RULER, string_match_all.
    """
    text = output.lower()
    return sum(reference.lower() in text for reference in references) / len(references)


def found_any(output: str, references: Sequence[str]) -> float:
    """1 if any reference occurs in the output, regardless of case, else 0.

    Source: RULER, string_match_part.
    """
    text = output.lower()
    return float(any(reference.lower() in text for reference in references))
