"""Prompts of multi-needle retrieval: magic numbers of cities, hidden in a long text."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.haystack import (
    HaystackProtocol,
    corpus_text,
    encode_within,
    forced_answer,
    insert_tokens,
    random_start,
    read_haystack_tokens,
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
    depth: float
    """Wanted depth of the first needle, in percent."""
    realised: tuple[float, ...]
    """Depth of each needle at the sentence end before the wanted one, in percent of the tokens."""
    spans: tuple[tuple[int, int], ...]
    """``(start, end)`` of each needle in ``ids``, end excluded."""
    context: tuple[int, int]
    """``(start, end)`` of text and needles in ``ids``, end excluded."""
    haystack_tokens: int
    haystack: str
    """Digest of the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MagicTask:
    """Settings of the prompts over one haystack."""

    source: str
    length: int
    """Exact number of tokens of BOS, template, text, needles, question and ``room`` together."""
    num_needles: int
    num_asked: int = 1
    sample: int
    """Index of the haystack."""
    seed: int
    template: str = "completion"
    room: int = 0
    """Tokens kept free for the answer."""
    depths: tuple[float, ...]
    """Depths of the first needle in percent, one prompt each."""
    needs_start: bool = False
    """Whether to begin with EOS if the tokenizer has no BOS."""
    text_field: str = "text"
    ending: str = ""
    """Beginning of the answer up to its first digit, after the template; ``{city}``: the first."""


@dataclass(frozen=True, kw_only=True)
class MagicProtocol(HaystackProtocol):
    """A protocol that hides numbers of cities in a long text."""

    depths: tuple[float, ...] = STANDARD_DEPTHS
    """Depths of the first needle, in percent."""
    samples: int = 50
    """Number of haystacks per length."""
    seed: int = 1234

    def magic_task(self, **facts: Any) -> MagicTask:
        """Settings of the prompts over one haystack, from the protocol's fields and ``facts``."""
        return MagicTask(
            source=self.haystack,
            text_field=self.text_field,
            depths=tuple(self.depths),
            seed=self.seed,
            **facts,
        )

    def require_prompt(self, model: LanguageModel, task: MagicTask) -> None:
        """Raise ``ConfigError``, before the first item, if a text or a length is too short."""
        try:
            build_prompts(model, task, self.depths[:1])
        except ItemError as error:
            raise ConfigError(f"{self.name}: {error}") from error


def needle(city: str, number: str) -> str:
    """The sentence to hide, on a separate line."""
    return f"\n{answer(city)} {number}\n"


def answer(city: str) -> str:
    """The words before the number, in the needle and in a full answer."""
    return f"The special magic {city} number is:"


def forced_number(model: LanguageModel, city: str, number: str) -> Continuation:
    """The answer in the needle's words: the words are the context, the number is the target."""
    return forced_answer(model, f" {answer(city)}", number)


def before_digits(model: LanguageModel, city: str, number: str) -> list[int]:
    """Tokens between the words of an answer and its first digit: none, or a space."""
    target = forced_number(model, city, number).target
    digits = (any(map(str.isdigit, model.decode([token]))) for token in target)
    return list(target[: next(i for i, is_digit in enumerate(digits) if is_digit)])


def answer_room(model: LanguageModel, generated: int) -> int:
    """Tokens to keep free: enough for ``generated`` tokens and for any city's forced answer."""
    answers = (forced_number(model, city, "8888888") for city in CITIES)
    # Another number may be cut into more tokens, at most one per digit and one for the space.
    return max(generated, *(len(forced.context) + 8 for forced in answers))


def question(cities: Sequence[str]) -> str:
    """The question for one city's number or for several."""
    if len(cities) == 1:
        return f"What is the special magic number for {cities[0]}?"
    return f"What are the special magic numbers for {', '.join(cities[:-1])}, and {cities[-1]}?"


def build_prompts(
    model: LanguageModel, task: MagicTask, depths: Sequence[float] | None = None
) -> list[MagicPrompt]:
    """The prompts of one haystack. They differ only in the depth of the first needle.

    Text, cities and numbers depend only on ``seed``, ``length`` and ``sample``. The slots of the
    other needles also depend on ``num_needles`` and ``task.depths``, as they avoid all slots at
    standard depths and at these. A larger ``num_needles`` keeps the cities and numbers of a smaller
    one. Each prompt has ``length - room`` tokens.

    Source: arXiv:2410.05258v2, section 3.4 (multi-needle retrieval).
    """
    corpus = corpus_text(task.source, task.text_field)
    key = f"{task.seed}-{task.length}-{task.sample}"
    # All cities are drawn, so that a smaller ``num_needles`` takes the first of the same cities.
    cities = Random(f"{key}-cities").sample(CITIES, len(CITIES))[: task.num_needles]
    numbers = _draw_numbers(corpus, Random(f"{key}-numbers"), task.num_needles)
    needles = [needle(*pair) for pair in zip(cities, numbers, strict=True)]
    pieces = [encode_within(model, text) for text in needles]
    head, tail = _frame(model, task, cities, numbers)
    size = _text_size(task, len(head) + len(tail), sum(map(len, pieces)))
    start = random_start(corpus, Random(f"{key}-text"))
    text = read_haystack_tokens(model, task.source, start, size, task.text_field)
    taken = {text.slot(depth) for depth in (*STANDARD_DEPTHS, *task.depths)}
    others = text.random_slots(Random(f"{key}-places"), task.num_needles - 1, taken)

    def prompt(depth: float) -> MagicPrompt:
        slots = [text.slot(depth), *others]
        context, spans = insert_tokens(text.ids, list(zip(slots, pieces, strict=True)))
        return MagicPrompt(
            ids=(*head, *context, *tail),
            cities=tuple(cities),
            numbers=tuple(numbers),
            depth=depth,
            realised=tuple(100 * slot / size for slot in slots),
            spans=tuple((a + len(head), b + len(head)) for a, b in spans),
            context=(len(head), len(head) + len(context)),
            haystack_tokens=size,
            haystack=text.digest(),
        )

    return [prompt(depth) for depth in (task.depths if depths is None else depths)]


def _frame(
    model: LanguageModel, task: MagicTask, cities: Sequence[str], numbers: Sequence[str]
) -> tuple[list[int], list[int]]:
    """Tokens before and after the context."""
    before, after = TEMPLATES[task.template]
    head = [*model.start(task.needs_start), *(model.encode(before) if before else [])]
    ending = after.format(question=question(cities[: task.num_asked]))
    tail = encode_within(model, ending + task.ending.format(city=cities[0]))
    if task.ending:
        tail += before_digits(model, cities[0], numbers[0])
    return head, tail


def _text_size(task: MagicTask, frame: int, needles: int) -> int:
    """Number of tokens that are left for the text."""
    size = task.length - task.room - frame - needles
    if size < task.num_needles:
        raise ItemError(
            f"haystack: {task.length} tokens must hold {task.num_needles} needles ({needles} "
            f"tokens), the question ({frame}), the answer ({task.room}) and text, "
            f"got {size} tokens for the text. Choose a greater length."
        )
    return size


def _draw_numbers(corpus: str, draw: Random, count: int) -> list[str]:
    """Distinct numbers of seven digits that do not occur in the corpus."""
    numbers: list[str] = []
    while len(numbers) < count:
        number = str(draw.randint(10**6, 10**7 - 1))
        if number not in numbers and number not in corpus:
            numbers.append(number)
    return numbers
