"""Magic numbers of cities, hidden in a long text: the prompts of multi-needle retrieval."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from diffattn.lab.evaluation.long_context.haystack import (
    corpus_text,
    encode_within,
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
"""Distinct, of one word, and none is part of another."""
STANDARD_DEPTHS: tuple[float, ...] = (0, 25, 50, 75, 100)
"""Of Table 3, in percent. No other needle lies there, whichever of them are asked for."""

TEMPLATES: dict[str, tuple[str, str]] = {
    "completion": ("", "\nQuestion: {question}\nAnswer:"),
    "lwm": (
        "You are a helpful assistant. USER: ",
        " {question} Don't give information outside the document. ASSISTANT:",
    ),
}
"""Name -> what stands before the context and after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MagicPrompt:
    """One long prompt: numbers of several cities in a text, and a question for some of them."""

    ids: tuple[int, ...]
    cities: tuple[str, ...]
    """All that are hidden; the first ``num_asked`` are asked for, the first lies at ``depth``."""
    numbers: tuple[str, ...]
    depth: float
    """Asked for, in percent."""
    realised: tuple[float, ...]
    """Of every needle, after going back to a sentence end, in percent of the text's tokens."""
    spans: tuple[tuple[int, int], ...]
    """First token of every needle in ``ids`` and the one after its last."""
    context: tuple[int, int]
    """First token of text and needles in ``ids`` and the one after their last."""
    haystack_tokens: int
    haystack: str
    """Digest of the text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MagicTask:
    """How many numbers are hidden and asked for, and in what. One haystack per ``sample``."""

    source: str
    length: int
    """Tokens of BOS, template, text, needles, question and ``room`` together: exact."""
    num_needles: int
    num_asked: int
    sample: int
    seed: int
    template: str
    room: int
    """Tokens kept free for the answer."""
    depths: tuple[float, ...]
    """Of the first city asked for, over the prompts of this haystack."""
    needs_start: bool = False
    """Begin with EOS where the tokenizer has no BOS."""
    text_field: str = "text"
    """Key of the text in JSON lines."""
    ending: str = ""
    """Beginning of an answer after the template, up to its first digit; ``{city}`` is the first."""


def needle(city: str, number: str) -> str:
    """The sentence that is hidden, on a line of its own."""
    return f"\n{answer(city)} {number}\n"


def answer(city: str) -> str:
    """What the number follows, in the needle and in a full answer."""
    return f"The special magic {city} number is:"


def forced_answer(model: LanguageModel, city: str, number: str) -> Continuation:
    """The answer in the needle's words after a prompt: what is given, and the number's tokens."""
    given = encode_within(model, f" {answer(city)}")
    whole = encode_within(model, f" {answer(city)} {number}")
    return Continuation(tuple(given), tuple(whole[len(given) :]))


def before_digits(model: LanguageModel, city: str, number: str) -> list[int]:
    """Tokens between the words of an answer and its first digit: a space, if it is a token."""
    target = forced_answer(model, city, number).target
    digits = (any(map(str.isdigit, model.decode([token]))) for token in target)
    return list(target[: next(i for i, found in enumerate(digits) if found)])


def answer_room(model: LanguageModel, generated: int) -> int:
    """Tokens to keep free: for ``generated`` ones and for any city's forced answer."""
    answers = (forced_answer(model, city, "8888888") for city in CITIES)
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
    """The prompts of one haystack: equal but for the depth of the first needle.

    Text, cities and numbers follow from ``seed``, ``length`` and ``sample`` alone, the places of
    the other needles from ``num_needles`` as well, and from those of ``task.depths`` that are no
    standard ones: they leave these free. More needles add to fewer. Places are found in the text
    without needles and filled from right to left.

    Source: arXiv:2410.05258v2, section 3.4 (multi-needle retrieval).

    Args:
        model: Whose tokens are counted.
        task: What is hidden.
        depths: Some of ``task.depths``. Default: all.

    Returns:
        One prompt per depth, in order, each of ``length - room`` tokens.

    Raises:
        ConfigError: The corpus is shorter than the text that is needed, or a start is needed and
            the tokenizer has neither BOS nor EOS.
        ItemError: Needles and question leave too little text between them.
    """
    corpus = corpus_text(task.source, task.text_field)
    key = f"{task.seed}-{task.length}-{task.sample}"
    # All cities are drawn, so that fewer needles are the first of more.
    cities = Random(f"{key}-cities").sample(CITIES, len(CITIES))[: task.num_needles]
    numbers = _draw_numbers(corpus, Random(f"{key}-numbers"), task.num_needles)
    pieces = [
        encode_within(model, needle(city, number))
        for city, number in zip(cities, numbers, strict=True)
    ]
    before, after = TEMPLATES[task.template]
    head = [*model.start(task.needs_start), *(model.encode(before) if before else [])]
    asked = question(cities[: task.num_asked])
    tail = encode_within(model, after.format(question=asked) + task.ending.format(city=cities[0]))
    if task.ending:
        tail += before_digits(model, cities[0], numbers[0])
    needles = sum(map(len, pieces))
    size = task.length - task.room - len(head) - len(tail) - needles
    if size < task.num_needles:
        raise ItemError(
            f"haystack: {task.length} tokens must hold {task.num_needles} needles ({needles} "
            f"tokens), the question ({len(head) + len(tail)}), the answer ({task.room}) and text, "
            f"got {size} tokens for the text. Choose a greater length."
        )
    stretch = read_haystack_tokens(
        model, task.source, random_start(corpus, Random(f"{key}-text")), size, task.text_field
    )
    taken = {stretch.slot(depth) for depth in (*STANDARD_DEPTHS, *task.depths)}
    others = stretch.random_slots(Random(f"{key}-places"), task.num_needles - 1, taken)
    prompts = []
    for depth in task.depths if depths is None else depths:
        slots = [stretch.slot(depth), *others]
        context, spans = insert_tokens(stretch.ids, list(zip(slots, pieces, strict=True)))
        ids = (*head, *context, *tail)
        assert len(ids) == task.length - task.room
        prompts.append(
            MagicPrompt(
                ids=ids,
                cities=tuple(cities),
                numbers=tuple(numbers),
                depth=depth,
                realised=tuple(100 * slot / size for slot in slots),
                spans=tuple((a + len(head), b + len(head)) for a, b in spans),
                context=(len(head), len(head) + len(context)),
                haystack_tokens=size,
                haystack=stretch.digest(),
            )
        )
    return prompts


def _draw_numbers(corpus: str, draw: Random, count: int) -> list[str]:
    """Distinct numbers of seven digits that occur nowhere in the corpus."""
    numbers: list[str] = []
    while len(numbers) < count:
        number = str(draw.randint(10**6, 10**7 - 1))
        if number not in numbers and number not in corpus:
            numbers.append(number)
    return numbers
