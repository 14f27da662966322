"""Words that RULER's tasks are made of: written for this project, or coined by rule."""

from functools import lru_cache
from pathlib import Path
from random import Random

from diffattn.data import files
from diffattn.errors import ConfigError

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
    words = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    spaced = next((word for word in words if len(word.split()) > 1), None)
    if spaced is not None:
        raise ConfigError(f"{path}: must hold one word per line, got {spaced!r}.")
    if len(words) < least:
        raise ConfigError(f"{path}: must hold {least} different words or more, got {len(words)}.")
    return tuple(words)
