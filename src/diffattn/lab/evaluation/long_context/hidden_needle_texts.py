"""Needles that share no content word with the questions about them, written for this project."""

from dataclasses import dataclass

NAMES = (
    "Agnes", "Bruno", "Celia", "Edgar", "Greta", "Hugo", "Irma", "Julius", "Leonie", "Magnus",
    "Nadia", "Otto",
)  # fmt: skip
"""One of them stands in the needle and is the answer; none that the haystack names is used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HiddenNeedle:
    """A sentence about someone, and three ways to ask who it is."""

    text: str
    """With ``{name}``."""
    literal: str
    """Repeats words of the sentence: what remains of the score is not the fault of the hop."""
    one_hop: str
    """Needs one fact of the world between question and sentence."""
    two_hop: str
    """Needs two."""

    def question(self, kind: str) -> str:
        """The question of a kind."""
        asked = {"literal": self.literal, "one_hop": self.one_hop, "two_hop": self.two_hop}
        return asked[kind]


KINDS = ("one_hop", "two_hop", "literal")


NEEDLES = (
    HiddenNeedle(
        text="Every evening {name} walked home past the foot of the Eiffel Tower.",
        literal="Who walked home past the Eiffel Tower?",
        one_hop="Who lives in Paris?",
        two_hop="Who lives in France?",
    ),
    HiddenNeedle(
        text="From the bedroom window {name} could look straight at the Colosseum.",
        literal="Who could look at the Colosseum from a bedroom window?",
        one_hop="Who has a flat in Rome?",
        two_hop="Who has a flat in Italy?",
    ),
    HiddenNeedle(
        text="The nurse told {name} that the wheat in the bread had brought on the pain again.",
        literal="Whose pain was brought on by the wheat in the bread?",
        one_hop="Who does not tolerate gluten?",
        two_hop="Who had better not eat ordinary spaghetti?",
    ),
    HiddenNeedle(
        text="For thirty years {name} has eaten neither meat nor fish.",
        literal="Who has eaten neither meat nor fish for thirty years?",
        one_hop="Who is a vegetarian?",
        two_hop="Who would turn down a roast chicken?",
    ),
    HiddenNeedle(
        text="By noon {name} had pulled three teeth and filled two more.",
        literal="Who had pulled three teeth and filled two by noon?",
        one_hop="Who is a dentist?",
        two_hop="Who works in health care?",
    ),
    HiddenNeedle(
        text="On stage {name} tuned the four strings and tucked the instrument under the chin.",
        literal="Who tuned the four strings on stage?",
        one_hop="Who plays the violin?",
        two_hop="Who is a musician?",
    ),
    HiddenNeedle(
        text="A guide dog leads {name} across the square each morning.",
        literal="Whom does a guide dog lead across the square?",
        one_hop="Who is blind?",
        two_hop="Who reads with the fingertips?",
    ),
    HiddenNeedle(
        text="At the wedding {name} spoke of growing up beside the pyramids of Giza.",
        literal="Who spoke of growing up beside the pyramids?",
        one_hop="Who comes from Egypt?",
        two_hop="Who comes from Africa?",
    ),
    HiddenNeedle(
        text="Behind the cottage {name} keeps eleven hives and sells what they give.",
        literal="Who keeps eleven hives behind the cottage?",
        one_hop="Who raises bees?",
        two_hop="Who earns money from honey?",
    ),
    HiddenNeedle(
        text="Even on the second step of a ladder {name} trembles and has to come down.",
        literal="Who trembles on the second step of a ladder?",
        one_hop="Who is afraid of heights?",
        two_hop="Who would hate to work as a roofer?",
    ),
)
"""Frozen: a change of any of them raises the version of the protocol."""
