"""Samples of RULER's tasks, and their content: words, questions and random streams."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from diffattn.lab.evaluation.long_context.haystack import HaystackWords
from diffattn.lab.evaluation.long_context.ruler.words import WordList

DEPTHS = tuple(round(100 * i / 39) for i in range(40))
"""Percent of the context: 40 linear places, of which a sample uses each at most once."""
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One question with its context."""

    question: str
    answer_prefix: str
    """The beginning of the answer, which the model completes."""
    references: tuple[str, ...]
    """Strings that are looked for in the output."""
    answer: str
    """A right answer as it would follow the prefix."""
    candidates: tuple[str, ...] | None = None
    """Different values or variables in the context. Default: it is a list, or documents."""
    listed: tuple[str, ...] | None = None
    """Words of a list in their order, as often as they occur. Default: it is none."""
    documents: str | None = None
    """Text that holds the answer. Default: there is none."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """For the reader of the log."""


Streams = Callable[[str], Random]
"""Random numbers of one sample, one stream per purpose, from its beginning.

So a longer context only adds to a shorter one, and the fit of the length relies on that.
"""


def streams_of(key: str) -> Streams:
    """The streams of the sample with this key."""
    return lambda purpose: Random(f"{key}-{purpose}")


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a file, and the documents with its answer."""

    text: str
    answers: tuple[str, ...]
    required: tuple[int, ...]
    """Documents it comes with."""
    near: tuple[int, ...]
    """Documents that are added first: of the same article."""


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """Questions and documents of one file."""

    path: str
    documents: tuple[str, ...]
    questions: tuple[Question, ...]

    def __len__(self) -> int:
        return len(self.questions)

    def shuffled(self, draw: Random) -> "QuestionFile":
        """The same questions in random order: the first so many are a sample without repeats."""
        return replace(self, questions=tuple(draw.sample(self.questions, len(self.questions))))

    def ask(self, index: int, count: int, streams: Streams) -> tuple[str, list[str], list[str]]:
        """Question, so many documents in random order, and accepted answers.

        The question's own documents come first, then those of its article, then any.
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
    """Sources of the content."""

    background: HaystackWords | None = None
    from_beginning: bool = False
    """Whether every passage of the background begins with its first sentence."""
    numbers: frozenset[str] = frozenset()
    """Seven-digit numbers of the background: no value may be one of them."""
    words: WordList | None = None
    """Of ``cwe``. Default: none, for the other tasks."""
    keys: tuple[str, ...] | None = None
    """Keys of needles. Default: adjective-noun pairs."""
    questions: Mapping[str, QuestionFile] = field(default_factory=dict)
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
        """Units that exist, for contexts of ``length`` tokens."""
        return length

    @abstractmethod
    def build(
        self, units: int, length: int, index: int, streams: Streams, material: Material
    ) -> Sample:
        """Sample number ``index`` with so many units of context, from ``least`` to ``most``.

        ``length`` is the number of tokens aimed at; some tasks scale with it.
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
