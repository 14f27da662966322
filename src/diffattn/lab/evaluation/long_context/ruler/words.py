"""Words for RULER's lists and keys, from Python's documentation or from a user's file."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random

from diffattn.errors import ConfigError
from diffattn.lab.data import files
from diffattn.lab.data.corpora import load_corpus

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
        """First 16 hex digits of the SHA-256 of the words."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]


@lru_cache(maxsize=2)
def word_list(source: str) -> WordList:
    """The words of a file, or for ``"python"`` of the documentation of this Python installation.

    Python's are in the docstrings of the standard library and its documentation files. None of them
    is a part of another.
    """
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
