"""Multi-needle retrieval: magic numbers of cities, hidden in a long text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product, takewhile
from random import Random
from typing import Any

from diffattn.errors import ConfigError, check_known
from diffattn.lab.evaluation.long_context.haystack import (
    HaystackProtocol,
    HaystackTokens,
    corpus_text,
    encode_within,
    insert_tokens,
)
from diffattn.lab.evaluation.metrics import guess_metrics, guess_shares, rows_with, score_metric
from diffattn.lab.evaluation.protocol import Item, Summary
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import Prefix
from diffattn.lab.inference.scoring import Continuation
from diffattn.lab.records.evaluations import Metric

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
    spans: tuple[tuple[int, int], ...]  # of each needle in ``ids``, end excluded
    context: tuple[int, int]  # of text and needles together
    haystack: HaystackTokens


class MagicProtocol(HaystackProtocol):
    """A protocol that hides numbers of cities in a long text."""

    depths: tuple[float, ...] = STANDARD_DEPTHS  # of the first needle, in percent
    samples: int = 50  # haystacks per length
    seed: int = 1234

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
        Raises ``ConfigError`` if the text or the length is too short.
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
            raise ConfigError(
                f"{self.name}: {length} tokens must hold {num_needles} needles ({taken} tokens), "
                f"question ({frame}), answer ({room}) and text, got {size} tokens for the text. "
                "Choose a greater length."
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


_GRID = ("recall", "all_correct")
_SCORES = (*_GRID, "digits_greedy", "logprob_per_token")


class Needle(MagicProtocol):
    """Numbers of N cities are hidden in a text; the question asks for the numbers of R cities.

    The first of these is hidden at fixed depths, the others anywhere. At all depths of one text the
    other needles are the same, so the prompts differ only in the position of one sentence.
    """

    name = "needle"
    choices = {
        "prompt": "completion: the text, then 'Question: ...' and 'Answer:' on lines of their "
        "own; 'lwm' takes that script's chat frame",
        "answer": "greedy, up to a line end or 8 R + 24 tokens",
        "score": "recall per number (mean over R), and all R right beside it; a number counts if "
        "it stands in the output and no digit touches it",
        "guess": "expected recall of naming hidden numbers without regard to the question: R of "
        "them, and as many as the output does; none where N = R",
        "forced": "beside it the digits after 'The special magic CITY number is:', given: whether "
        "the argmax writes them all, and their log-probability",
        "depth": "of the first city asked for, in tokens of the text without needles, back to the "
        "last sentence end; 0 is before the text, 100 right before the question",
        "other needles": "uniformly random depths, each at a sentence end of its own; with R > 1 "
        "the other cities asked for are among them",
        "length": "tokens of BOS, text, needles, question and room for the answer together, exact; "
        "8K is 8,192",
        "haystack": "one text per length and sample, the same for all depths and all (N, R), from "
        "a random sentence on; documents are joined, never repeated",
        "intervals": "Wilson for a cell; over depths, of the effective number of haystacks",
    }
    quick = {"tasks": ((1, 1), (4, 2)), "lengths": (1_024,), "depths": (0, 50, 100), "samples": 3}
    quick_short = {"tasks": ((1, 1),)}

    tasks: tuple[tuple[int, int], ...] = ((1, 1), (2, 2), (4, 2), (6, 2))
    """(N, R): number of hidden cities, and of cities in the question."""
    lengths: tuple[int, ...] = (4_096,)  # in tokens, room for the answer included
    prompt: str = "completion"  # a name in ``TEMPLATES``

    def __post_init__(self) -> None:
        fits = all(1 <= r <= n <= len(CITIES) for n, r in self.tasks)
        if not self.tasks or not fits or len(set(self.tasks)) < len(self.tasks):
            raise ConfigError(
                f"needle: tasks must be (N, R), each once, with 1 <= R <= N <= {len(CITIES)} "
                f"cities, got {self.tasks}."
            )
        self.require_depths(self.depths)
        self.require_at_least(1, "lengths", "samples")
        check_known(self.name, "prompt", self.prompt, TEMPLATES)

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One haystack and one (N, R) per batch, with all depths: the prompts share a prefix."""
        self.require_fit(model, "lengths", max(self.lengths))
        for n, r in self.tasks:
            for length in {min(self.lengths), max(self.lengths)}:
                settings = self._settings(model, n, r, length, 0)
                self.build_prompts(model, self.depths[:1], **settings)  # refuses short texts
        return [
            [
                Item(
                    id=f"{n}-{r}/{length}/{sample}/{depth:g}",
                    payload=(n, r, length, sample, depth),
                    cluster=f"{length}/{sample}",
                )
                for depth in self.depths
            ]
            for length in self.lengths
            for n, r in self.tasks
            for sample in range(self.samples)
        ]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        settings = self._settings(model, *items[0].payload[:-1])
        prompts = self.build_prompts(model, [item.payload[-1] for item in items], **settings)
        return self.read_rows(model, prompts, lambda *read: _row(model, settings, *read))

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        metrics: list[Metric] = []
        for n, r in self.tasks:
            of_task, task = rows_with(rows, needles=n, asked=r), {"task": f"N={n}, R={r}"}
            # With R = 1 both scores are the same.
            printed = _GRID if r > 1 else _GRID[:1]
            for depth, length in product(self.depths, self.lengths):
                chosen = rows_with(of_task, length=length, depth=depth)
                where = task | {"length": length, "depth": depth}
                metrics += [mean for name in printed for mean in score_metric(name, chosen, where)]
            for length in self.lengths:
                chosen, where = rows_with(of_task, length=length), task | {"length": length}
                for name in _SCORES:
                    if r > 1 or name != "all_correct":
                        metrics += score_metric(name, chosen, where, headline=name in printed)
                metrics += guess_metrics(chosen, where)
        return Summary(metrics=metrics)

    def _settings(
        self, model: LanguageModel, n: int, r: int, length: int, sample: int
    ) -> dict[str, Any]:
        given = max(len(encode_within(model, f" {answer(city)}")) for city in CITIES)
        # A number is cut into at most one token per digit and one for the space.
        room = max(new_tokens(r), given + 8)
        facts = {"num_needles": n, "num_asked": r, "length": length, "sample": sample}
        return facts | {"room": room, "template": self.prompt}


def new_tokens(num_asked: int) -> int:
    """Most tokens of a generated answer."""
    return 8 * num_asked + 24


def contains_number(text: str, number: str) -> bool:
    """Whether the number occurs in a text without a further digit before or after it."""
    return re.search(rf"(?<!\d){number}(?!\d)", text) is not None


def _row(
    model: LanguageModel, settings: Mapping[str, Any], prompt: MagicPrompt, prefix: Prefix
) -> dict[str, Any]:
    """The row of a prompt; ``prefix`` holds all its tokens but the last."""
    last, num_asked, num_needles = prompt.ids[-1:], settings["num_asked"], len(prompt.numbers)
    (written,) = model.generate(
        [last], max_new_tokens=new_tokens(num_asked), stop=("\n",), before=prefix
    )
    asked = list(zip(prompt.cities, prompt.numbers, strict=True))[:num_asked]
    forced = [forced_number(model, city, number) for city, number in asked]
    forced = [replace(given, context=(*last, *given.context)) for given in forced]
    scores = model.score(forced, before=prefix)
    recalled = [contains_number(written.text, number) for _, number in asked]
    logprobs = [x for score in scores for x in score.token_logprobs]
    named = sum(contains_number(written.text, number) for number in prompt.numbers)
    return {
        "needles": num_needles,
        "asked": num_asked,
        "length": settings["length"],
        "sample": settings["sample"],
        "cities": [city for city, _ in asked],
        "numbers": [number for _, number in asked],
        "found": recalled,
        "output": written.text,
        "finished": written.finished,
        "depths": [round(x, 3) for x in prompt.realised],
        "room_tokens": settings["room"],
        **guess_shares(num_asked, num_needles, named),
        "haystack_tokens": len(prompt.haystack.ids),
        "scores": {
            "recall": sum(recalled) / len(recalled),
            "all_correct": float(all(recalled)),
            "digits_greedy": sum(score.is_greedy for score in scores) / len(scores),
            "logprob_per_token": sum(logprobs) / len(logprobs),
        },
    }
