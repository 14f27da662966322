"""What RULER's samples are made of: words, questions, random streams, and where they are from."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from diffattn.data import files
from diffattn.errors import ConfigError
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


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a file, and where its answer stands."""

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
    """Where content is from."""

    background: HaystackWords | None = None
    numbers: frozenset[str] = frozenset()
    """Seven-digit numbers of the background: no value may be one of them."""
    words: Sequence[str] | None = None
    """Words of the user's list. Default: generated ones."""
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
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aeiou"


def coined_words(count: int, draw: Random) -> list[str]:
    """Different six-letter words of three syllables, such as ``"bavone"``.

    All have one length, so that none lies within another, which a substring score would count.

    Args:
        count: Up to some hundred thousand; there are 512,000.
        draw: The first words of a longer list are those of a shorter one.
    """
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = (draw.choice(_CONSONANTS) + draw.choice(_VOWELS) for _ in range(3))
        words["".join(syllables)] = None
    return list(words)


@lru_cache(maxsize=2)
def read_words(path: str, least: int) -> tuple[str, ...]:
    """Different words of a file, one per line, in its order.

    Args:
        path: UTF-8 text.
        least: Words needed.

    Raises:
        ConfigError: The file is missing, not UTF-8, or holds fewer words, or words with spaces.
    """
    files.require_path(Path(path))
    text = files.read_text(Path(path))
    if text is None:
        raise ConfigError(f"{path}: must be UTF-8 text with one word per line, got other data.")
    words = list(dict.fromkeys(line.strip() for line in text.split("\n") if line.strip()))
    spaced = next((word for word in words if len(word.split()) > 1), None)
    if spaced is not None:
        raise ConfigError(f"{path}: must hold one word per line, got {spaced!r}.")
    if len(words) < least:
        raise ConfigError(f"{path}: must hold {least} different words or more, got {len(words)}.")
    return tuple(words)
