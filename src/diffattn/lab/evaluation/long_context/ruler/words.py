"""Words of RULER's lists and keys: from Python's documentation, or from a user's file."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random

from diffattn.errors import ConfigError
from diffattn.lab.data import files
from diffattn.lab.data.corpora import load_corpus

_LEAST_WORDS = 60
"""A worked example of 40 and a list of 20."""
_LETTERS = (5, 9)
"""Letters of a word from text: with fewer it would lie within many others."""
_LEAST_TEXTS = 2
"""Texts that must hold a word: one that stands in one alone is often a name or a slip."""
_IN_PROSE = re.compile(r"(?<=[a-z,;] )[a-z]+(?=[,;.]? [a-z])")
"""A word between words, all in lower case: names in code seldom stand so."""
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
    """In a fixed order."""
    goes_on: bool = False
    """Whether adjective-noun pairs follow where the words are spent."""

    def draw(self, count: int, draw: Random) -> list[str]:
        """So many different words in random order. A longer list begins as a shorter one.

        Raises:
            ConfigError: The source has fewer.
        """
        shuffled = draw.sample(self.words, len(self.words))
        if count > len(shuffled) and self.goes_on:
            pairs = [f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS]
            shuffled += draw.sample(pairs, len(pairs))
        if count > len(shuffled):
            raise ConfigError(
                f"word_list {self.source!r} must hold {count} words, got {len(shuffled)}."
            )
        return shuffled[:count]

    @property
    def most(self) -> int | None:
        """Number of words. ``None``: more than any context holds."""
        return None if self.goes_on else len(self.words)

    @cached_property
    def sha256(self) -> str:
        """First 16 hex digits of the hash of the words."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]


@lru_cache(maxsize=2)
def word_list(source: str) -> WordList:
    """The words of a file, or of ``"python"``: the documentation that this installation carries.

    That is the standard library's docstrings and the texts beside it.
    """
    if source != "python":
        return WordList(source, read_words(source, _LEAST_WORDS))
    texts = (
        " ".join(_DOCSTRING.findall(file.text)) if file.name.endswith(".py") else file.text
        for file in load_corpus("python")
    )
    words = _apart(_IN_PROSE.findall(text) for text in texts)
    if len(words) < _LEAST_WORDS:
        raise ConfigError(
            f"ruler: word_list {source!r} must give {_LEAST_WORDS} words of {_LETTERS[0]} to "
            f"{_LETTERS[1]} small letters that occur twice, got {len(words)}. Name a file: "
            "--set ruler.word_list=PATH"
        )
    return WordList(source, words, goes_on=True)


def _apart(texts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Words of enough texts, in order of the alphabet, of which none lies within another one.

    The score looks for a word anywhere in the output, so "classes" would count as "class".
    """
    low, high = _LETTERS
    counts = Counter(word for text in texts for word in set(text))
    known = {
        word
        for word, count in counts.items()
        if count >= _LEAST_TEXTS and low <= len(word) <= high and word.isalpha() and word.islower()
    }
    within = {part for word in known for part in _parts(word)}
    within |= {part for word in (*ADJECTIVES, *NOUNS) for part in (word, *_parts(word))}
    return tuple(sorted(known - within))


def _parts(word: str) -> Iterator[str]:
    """Parts of a word that are long enough to be one."""
    for size in range(_LETTERS[0], len(word)):
        yield from (word[i : i + size] for i in range(len(word) - size + 1))


@lru_cache(maxsize=2)
def read_words(path: str, least: int) -> tuple[str, ...]:
    """Different words of a file, ``least`` or more, one per line, in its order.

    Raises:
        ConfigError: The file is missing, not UTF-8, or holds fewer words, or words with spaces.
    """
    lines = files.require_text(Path(path)).split("\n")
    words = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    spaced = next((word for word in words if len(word.split()) > 1), None)
    if spaced is not None:
        raise ConfigError(f"{path}: must hold one word per line, got {spaced!r}.")
    if len(words) < least:
        raise ConfigError(f"{path}: must hold {least} different words or more, got {len(words)}.")
    return tuple(words)
