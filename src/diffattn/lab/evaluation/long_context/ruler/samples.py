"""Samples of RULER's tasks, and their sources: words, and questions about documents."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.data import files
from diffattn.lab.data.corpora import load_corpus
from diffattn.lab.evaluation.long_context.haystack import HaystackWords
from diffattn.lab.evaluation.metrics import GUESSES, NAMED, guess_shares
from diffattn.lab.inference.language_model import LanguageModel

_LEAST_WORDS = 60  # of a source: 40 for the worked example and 20 for the list
_LETTERS = (5, 9)  # fewest and most of a word; shorter words are often a part of others
_IN_PROSE = re.compile(r"(?<=[a-z,;] )[a-z]+(?=[,;.]? [a-z])")
"""A word between words, all in lower case. Identifiers in code seldom match."""
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)

_ADJECTIVES = """
able ample ancient ashen azure bitter blank blunt bold brave breezy brief bright brittle broad
broken calm careful chilly civil clean clear clever cloudy coarse common copper cosmic crimson
crisp curious curly damp daring dark deep dense dim distant double dreamy dry dull dusty eager
early earnest easy elder empty even exact faded faint fair famous fancy fast fine firm flat fond
formal frail free fresh frosty gentle giant glad glossy golden grand gray green handy happy hardy
hasty hidden hollow honest humble icy idle inner ivory jolly keen kind large late lazy lean level
light little lively lonely long loose loud loyal lucky major mellow merry mild minor misty modest
narrow neat nimble noble noisy normal odd olive open orange outer pale patient plain polite proud
purple quaint quick quiet rapid rare ready regal rich rigid ripe rough round royal rural rusty
sacred salty scarlet secret serene shady sharp shiny short shy silent silver sleepy slender slow
smooth snowy sober soft solid sour spare steady steep stern still stormy sturdy subtle sudden
sunny sweet swift tall tame tender thick thin tidy tiny tired upper urban usual vast velvet vivid
warm wary wild windy wise wooden young
"""
_NOUNS = """
acorn anchor apron arch arrow attic axle badge baker balcony ballad bandage banner barley barn
barrel basin basket beacon beam bell bench berry bishop blanket blossom boat bonnet border bottle
boulder bowl branch bread brick bridge broom brush bucket buckle bundle button cabin cable camel
camp candle canoe canvas carpet cart castle cedar cellar chain chair chalk chapel chest chimney
chisel circle cliff clock cloak cloud clover coach coast collar comet compass copper corner
cottage counter cradle crane crater creek cricket crown crystal curtain cushion dagger daisy
dancer desert desk diamond dinner dock door dragon drawer drum eagle easel elbow elm engine falcon
farmer feather fence fern ferry field fiddle finger flag flame flask flute forest forge fossil
fountain fox frame garden gate glacier glove goblet goose grain granite grape guitar hammer harbor
harp harvest hatchet hawk hazel heather hedge helmet heron hill hinge honey hood hook horn hotel
hunter inlet island jacket jar jewel journal kettle kitten ladder lagoon lake lantern lawn leaf
ledger lemon lever lily linen lion lizard locket lodge loom lumber magnet mantle maple marble
market marsh mask meadow medal melon mill mirror mitten monk moss mountain mustard needle nest
nickel notebook oak oar oasis ocean onion orchard otter owl oyster packet paddle palace panther
paper parcel parlor pasture patch pebble pelican pencil pepper piano pillar pillow pine pirate
pitcher planet plaster platform plum pocket poet pond poplar porch potter prairie prism pulley
pumpkin puppet quarry quilt rabbit raft rail raisin raven ribbon river robin rocket roof root rope
rudder saddle sailor salmon sandal satchel scarf school shelf shell shepherd shield shovel signal
sketch slate sled smith sparrow spindle spoon spring squirrel stable statue stone stool stove
straw stream summit swan sword table tailor tavern teapot temple thimble thistle thread throne
thunder ticket timber torch tower trail trumpet tulip tunnel turtle valley vase village vine
violin wagon walnut warden watch weaver whale wheel whistle willow window wolf wreath yarn zebra
"""
ADJECTIVES = tuple(_ADJECTIVES.split())
NOUNS = tuple(_NOUNS.split())


@dataclass(frozen=True)
class WordList:
    """Different words of one source."""

    source: str
    words: tuple[str, ...]
    goes_on: bool = False  # with adjective-noun pairs, after all words are used

    def draw(self, count: int, draw: Random) -> list[str]:
        """``count`` different words in random order. A longer list begins with a shorter one."""
        shuffled = draw.sample(self.words, len(self.words))
        if count > len(shuffled) and self.goes_on:
            pairs = [f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS]
            shuffled += draw.sample(pairs, len(pairs))
        if count > len(shuffled):
            raise ConfigError(
                f"word_list {self.source!r} must hold {count} words, got {len(shuffled)}."
            )
        return shuffled[:count]

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]


@lru_cache(maxsize=2)
def word_list(source: str) -> WordList:
    """The words of a file; for ``"python"`` those of the docstrings and documentation files of this
    Python installation, of which none is a part of another."""
    if source != "python":
        return WordList(source, read_words(source, _LEAST_WORDS))
    texts = (
        " ".join(_DOCSTRING.findall(file.text)) if file.name.endswith(".py") else file.text
        for file in load_corpus("python")
    )
    counts = Counter(word for text in texts for word in set(_IN_PROSE.findall(text)))
    low, high = _LETTERS
    # Words of a single text are often names or typos.
    known = {word for word, count in counts.items() if count > 1 and low <= len(word) <= high}
    # The score looks for a word anywhere in the output, so "classes" would count as "class".
    within = {part for word in known for part in _parts(word)}
    within |= {part for word in (*ADJECTIVES, *NOUNS) for part in (word, *_parts(word))}
    return WordList(source, tuple(sorted(known - within)), goes_on=True)


def _parts(word: str) -> Iterator[str]:
    """Parts of a word that are long enough to be words themselves."""
    for size in range(_LETTERS[0], len(word)):
        yield from (word[i : i + size] for i in range(len(word) - size + 1))


@lru_cache(maxsize=2)
def read_words(path: str, least: int) -> tuple[str, ...]:
    """The different words of a file with one word per line, in order; at least ``least``."""
    lines = files.require_text(Path(path)).split("\n")
    words = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    spaced = next((word for word in words if len(word.split()) > 1), None)
    if spaced is not None:
        raise ConfigError(f"{path}: must hold one word per line, got {spaced!r}.")
    if len(words) < least:
        raise ConfigError(f"{path}: must hold {least} different words or more, got {len(words)}.")
    return tuple(words)


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
    match: str = "all"  # score: share of references found; ``"part"``: whether any is found

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
        """Share of the references in the output, or by ``match`` whether any is; case is ignored,
        as in NVIDIA/RULER's string_match_all and string_match_part."""
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


_INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any other words."
)
_QUESTION = (
    f"{_INSTRUCTION}\n\nThe following are given documents.\n\n{{context}}\n\n{_INSTRUCTION}\n\n"
    "Question: {query}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionTask(RulerTask):
    """A question about documents, one or several of which hold the answer (section 3.4)."""

    max_new_tokens: int = 32
    match: str = "part"

    def units(self, material: Material, index: int, length: int) -> tuple[int, int]:
        file = material.questions[self.name]
        return len(file.questions[index].required), len(file.documents)

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        file = material.questions[self.name]
        question = file.questions[index]
        near, taken = list(question.near), {*question.required, *question.near}
        others = [i for i in range(len(file.documents)) if i not in taken]
        Random(f"{seed}-near").shuffle(near)
        Random(f"{seed}-others").shuffle(others)
        chosen = [*question.required, *near, *others][:units]
        Random(f"{seed}-order").shuffle(chosen)
        context = "\n\n".join(
            f"Document {n}:\n{file.documents[i]}" for n, i in enumerate(chosen, start=1)
        )
        return Sample(
            question=_QUESTION.format(context=context, query=question.text),
            answer_prefix=" Answer:",
            references=question.answers,
            answer=question.answers[0],
            documents=context,
            notes={"query": question.text, "documents": len(chosen)},
        )


@lru_cache(maxsize=4)
def read_questions(path: str, kind: str) -> QuestionFile:
    """Read a file in its original JSON format: ``"SQuAD"`` 1.1 or 2.0, answerable questions, or
    ``"HotpotQA"``, distractor setting."""
    read, form = _FORMATS[kind]
    text = files.require_text(Path(path))
    try:
        value = files.parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{path}: must be JSON, got: {error}.") from error
    try:
        documents, questions = read(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else "values of other types"
        raise ConfigError(f"{path}: must be a {kind} file ({form}), got {reason}.") from error
    for question in questions:
        texts = (question.text, *question.answers)
        if not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(f"{path}: questions and answers must be text, got {texts[:2]!r}.")
    if not questions:
        raise ConfigError(f"{path}: must hold {kind} questions with answers, got none.")
    return QuestionFile(path, documents, questions)


def _squad(value: Any) -> tuple[tuple[str, ...], tuple[Question, ...]]:
    articles = [
        [
            (p["context"], [q for q in p["qas"] if not q.get("is_impossible", False)])
            for p in a["paragraphs"]
        ]
        for a in value["data"]
    ]
    documents = tuple(sorted({text for article in articles for text, _ in article}))
    number = {text: i for i, text in enumerate(documents)}
    return documents, tuple(
        Question(
            entry["question"],
            tuple(dict.fromkeys(answer["text"] for answer in entry["answers"])),
            (number[text],),
            tuple(sorted({number[other] for other, _ in article} - {number[text]})),
        )
        for article in articles
        for text, asked in article
        for entry in asked
        if entry["answers"]
    )


def _hotpotqa(value: Any) -> tuple[tuple[str, ...], tuple[Question, ...]]:
    if isinstance(value, Mapping):
        raise TypeError
    entries = [
        (entry["question"], entry["answer"], [f"{t}\n{''.join(p)}" for t, p in entry["context"]])
        for entry in value
    ]
    documents = tuple(sorted({text for *_, texts in entries for text in texts}))
    number = {text: i for i, text in enumerate(documents)}
    return documents, tuple(
        Question(question, (answer,), tuple(dict.fromkeys(number[text] for text in texts)), ())
        for question, answer, texts in entries
    )


_FORMATS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "SQuAD": (_squad, "data, paragraphs, context, qas, question, answers"),
    "HotpotQA": (_hotpotqa, "a list of question, answer, context"),
}
