"""Prompts of multi-needle retrieval: magic numbers of cities, hidden in a long text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.haystack import (
    HaystackProtocol,
    HaystackTokens,
    corpus_text,
    encode_within,
    insert_tokens,
)
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.inference.scoring import Continuation

_NAMES = """
Accra Adelaide Algiers Amman Amsterdam Ankara Antwerp Athens Auckland Baghdad Baku Bamako
Bangkok Barcelona Beijing Beirut Belgrade Berlin Bogota Boston Brasilia Brussels Bucharest
Budapest Cairo Calgary Caracas Casablanca Chennai Chicago Cologne Colombo Conakry Copenhagen
Dakar Dallas Damascus Delhi Denver Detroit Dhaka Dublin Durban Edinburgh Florence Frankfurt
Geneva Glasgow Guayaquil Hamburg Hanoi Harare Havana Helsinki Houston Istanbul Jakarta
Johannesburg Kabul Kampala Karachi Kathmandu Khartoum Kingston Kinshasa Kolkata Krakow Kyoto
Lagos Lahore Leipzig Lima Lisbon Liverpool London Luanda Lusaka Madrid Managua Manchester Manila
Maputo Marseille Melbourne Memphis Miami Milan Minsk Montevideo Montreal Moscow Mumbai Munich
Nairobi Naples Nashville Orlando Osaka Oslo Ottawa Panama Paris Perth Phoenix Prague Quito
Reykjavik Riga Rome Rotterdam Santiago Sarajevo Seattle Seoul Seville Shanghai Singapore Sofia
Stockholm Stuttgart Sydney Taipei Tallinn Tashkent Tehran Tokyo Toronto Tripoli Tunis Turin
Valencia Vancouver Venice Vienna Vilnius Warsaw Washington Wellington Yerevan Zagreb Zurich
"""
CITIES: tuple[str, ...] = tuple(_NAMES.split())
"""Names of one word each. They are distinct, and none is a part of another."""
STANDARD_DEPTHS: tuple[float, ...] = (0, 25, 50, 75, 100)
"""Depths of Table 3 in percent. No other needle is put there, even if a run uses only some."""
TEMPLATES: dict[str, tuple[str, str]] = {
    "completion": ("", "\nQuestion: {question}\nAnswer:"),
    "lwm": (
        "You are a helpful assistant. USER: ",
        " {question} Don't give information outside the document. ASSISTANT:",
    ),
}
"""Name of a prompt to the texts before and after the context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MagicPrompt:
    """One long prompt: numbers of several cities in a text, and a question for some of them."""

    ids: tuple[int, ...]
    cities: tuple[str, ...]
    """All hidden cities. The question is for the first ``num_asked``; the first is at ``depth``."""
    numbers: tuple[str, ...]
    depth: float  # wanted for the first needle, in percent
    realised: tuple[float, ...]
    """Depth of each needle at the sentence end before the wanted one, in percent of the tokens."""
    spans: tuple[tuple[int, int], ...]
    """``(start, end)`` of each needle in ``ids``, end excluded."""
    context: tuple[int, int]  # of text and needles together
    haystack: HaystackTokens


@dataclass(frozen=True, kw_only=True)
class MagicProtocol(HaystackProtocol):
    """A protocol that hides numbers of cities in a long text."""

    depths: tuple[float, ...] = STANDARD_DEPTHS
    """Depths of the first needle, in percent."""
    samples: int = 50
    """Number of haystacks per length."""
    seed: int = 1234

    def require_prompt(self, model: LanguageModel, **settings: Any) -> None:
        """Raise ``ConfigError``, before the first item, if a text or a length is too short."""
        try:
            self.build_prompts(model, self.depths[:1], **settings)
        except ItemError as error:
            raise ConfigError(f"{self.name}: {error}") from error

    def build_prompts(
        self,
        model: LanguageModel,
        depths: Sequence[float],
        *,
        length: int,
        sample: int,
        num_needles: int,
        num_asked: int = 1,
        template: str = "completion",
        room: int = 0,
        up_to_digits: bool = False,
    ) -> list[MagicPrompt]:
        """The prompts of haystack ``sample``. They differ only in the depth of the first needle.

        Text, cities and numbers depend on seed, length and sample alone. Other needles avoid the
        slots at standard depths and ``self.depths``. Each prompt has ``length - room`` tokens; with
        ``up_to_digits`` the last predicts the first digit, and EOS stands in for a missing BOS.
        """
        corpus = corpus_text(self.haystack, self.text_field)
        key = f"{self.seed}-{length}-{sample}"
        cities = Random(f"{key}-cities").sample(CITIES, len(CITIES))[:num_needles]
        numbers = _draw_numbers(corpus, Random(f"{key}-numbers"), num_needles)
        pieces = [encode_within(model, needle(*x)) for x in zip(cities, numbers, strict=True)]
        head = [*model.start(up_to_digits), *model.encode(TEMPLATES[template][0])]
        after = TEMPLATES[template][1].format(question=question(cities[:num_asked]))
        tail = encode_within(model, f"{after} {answer(cities[0])}" if up_to_digits else after)
        if up_to_digits:  # some tokenizers have a token for the space before the digits
            target = forced_number(model, cities[0], numbers[0]).target
            tail += takewhile(lambda x: not any(map(str.isdigit, model.decode([x]))), target)
        taken, frame = sum(map(len, pieces)), len(head) + len(tail)
        size = length - room - frame - taken
        if size < num_needles:
            raise ItemError(
                f"haystack: {length} tokens must hold {num_needles} needles ({taken} tokens), the "
                f"question ({frame}), the answer ({room}) and text, got {size} tokens for the "
                "text. Choose a greater length."
            )
        text = self.stretch(model, f"{key}-text", size)
        barred = {text.slot(depth) for depth in (*STANDARD_DEPTHS, *self.depths)}
        others = text.random_slots(Random(f"{key}-places"), num_needles - 1, barred)
        prompts = []
        for depth in depths:
            slots = [text.slot(depth), *others]
            context, spans = insert_tokens(text.ids, list(zip(slots, pieces, strict=True)))
            prompts.append(
                MagicPrompt(
                    ids=(*head, *context, *tail),
                    cities=tuple(cities),
                    numbers=tuple(numbers),
                    depth=depth,
                    realised=tuple(100 * slot / size for slot in slots),
                    spans=tuple((a + len(head), b + len(head)) for a, b in spans),
                    context=(len(head), len(head) + len(context)),
                    haystack=text,
                )
            )
        return prompts


def needle(city: str, number: str) -> str:
    """The sentence to hide, on a separate line."""
    return f"\n{answer(city)} {number}\n"


def answer(city: str) -> str:
    """The words before the number, in the needle and in a full answer."""
    return f"The special magic {city} number is:"


def forced_number(model: LanguageModel, city: str, number: str) -> Continuation:
    """The answer in the needle's words: the words are the context, the number is the target."""
    given = f" {answer(city)}"
    target = model.encode_after(f"a{given}", f" {number}")
    return Continuation(tuple(encode_within(model, given)), tuple(target))


def question(cities: Sequence[str]) -> str:
    """The question for one city's number or for several."""
    if len(cities) == 1:
        return f"What is the special magic number for {cities[0]}?"
    return f"What are the special magic numbers for {', '.join(cities[:-1])}, and {cities[-1]}?"


def _draw_numbers(corpus: str, draw: Random, count: int) -> list[str]:
    """Distinct numbers of seven digits that do not occur in the corpus."""
    numbers: list[str] = []
    while len(numbers) < count:
        number = str(draw.randint(10**6, 10**7 - 1))
        if number not in numbers and number not in corpus:
            numbers.append(number)
    return numbers
