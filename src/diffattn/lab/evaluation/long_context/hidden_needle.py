"""Needles that answer a question without sharing a word with it."""

import itertools
import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.haystack import (
    ChatProtocol,
    HaystackWords,
    insert_sentences,
)
from diffattn.lab.evaluation.long_context.lengths import length_metric, most_that_fits
from diffattn.lab.evaluation.metrics import guess_shares, metric, rows_with
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.stats.intervals import share_interval

NAMES = (
    "Agnes", "Bruno", "Celia", "Edgar", "Greta", "Hugo", "Irma", "Julius", "Leonie", "Magnus",
    "Nadia", "Otto",
)  # fmt: skip
"""Names for the needle and so for the answer; a name that the text around it holds is not used."""


KINDS = ("one_hop", "two_hop", "literal")
"""Kinds of questions: they need one fact of world knowledge, or two, or none, as a control."""
_NEEDLES = """
Every evening {name} walked home past the foot of the Eiffel Tower.
Who walked home past the Eiffel Tower?
Who lives in Paris?
Who lives in France?

From the bedroom window {name} could look straight at the Colosseum.
Who could look at the Colosseum from a bedroom window?
Who has a flat in Rome?
Who has a flat in Italy?

The nurse told {name} that the wheat in the bread had brought on the pain again.
Whose pain was brought on by the wheat in the bread?
Who does not tolerate gluten?
Who had better not eat ordinary spaghetti?

For thirty years {name} has eaten neither meat nor fish.
Who has eaten neither meat nor fish for thirty years?
Who is a vegetarian?
Who would turn down a roast chicken?

By noon {name} had pulled three teeth and filled two more.
Who had pulled three teeth and filled two by noon?
Who is a dentist?
Who works in health care?

On stage {name} tuned the four strings and tucked the instrument under the chin.
Who tuned the four strings on stage?
Who plays the violin?
Who is a musician?

A guide dog leads {name} across the square each morning.
Whom does a guide dog lead across the square?
Who is blind?
Who reads with the fingertips?

At the wedding {name} spoke of growing up beside the pyramids of Giza.
Who spoke of growing up beside the pyramids?
Who comes from Egypt?
Who comes from Africa?

Behind the cottage {name} keeps eleven hives and sells what they give.
Who keeps eleven hives behind the cottage?
Who raises bees?
Who earns money from honey?

Even on the second step of a ladder {name} trembles and has to come down.
Who trembles on the second step of a ladder?
Who is afraid of heights?
Who would hate to work as a roofer?
"""
NEEDLES = tuple(
    dict(zip(("text", "literal", "one_hop", "two_hop"), lines.split("\n"), strict=True))
    for lines in _NEEDLES.strip().split("\n\n")
)
"""A sentence about someone, ``{name}`` in place of the name, and questions that ask who it is. Any
change here must raise the version of the protocol."""
BASE_LENGTHS = (250, 500, 1_000)  # whose mean score is the base score
KEPT = 0.85  # a length is effective if its score is at least this share of the base score
_STANDARD = (*BASE_LENGTHS, 2_000, 4_000, 8_000, 16_000, 32_000)
_QUESTION = (
    "Read the text and answer the question below it.\n\n{text}\n\nThe text does not say the answer "
    "outright; it follows from what is said of someone. Answer with a name.\nQuestion: {question}"
)
_SCORE = {"one_hop": "contains", "two_hop": "contains", "literal": "contains_literal"}
_LOGPROB = {kind: name.replace("contains", "logprob_per_token") for kind, name in _SCORE.items()}
"""Names of a row's scores by kind of question; as metrics all are called ``contains``."""


class HiddenNeedleSearch(ChatProtocol):
    """Questions "Who ...?" that one sentence of a long text answers in other words."""

    name = "hidden_needle"
    choices = {
        "needles": "10 sentences written for this project (NoLiMa's may not be passed on), so "
        "scores cannot be compared with published ones; only their fall with length can",
        "questions": "one hop and two hops of world knowledge; a literal question about the same "
        "sentence is a control and not part of the score",
        "names": "one of 12, drawn per text, that does not occur in it",
        "length": "tokens of the text with the needle; prompt and answer come on top",
        "haystack": "the corpus named, from a random sentence on per text, filled word by word "
        "(NoLiMa: snippets of open books, shuffled)",
        "place": "the end of a sentence nearest to the depth, counted in words",
        "prompt": "completion after 'Answer:', or the chat template by chat=true; no reasoning",
        "guess": "the expected score of guessing among the names in the text, with one guess and "
        "with as many as the output names; none where the answer is the only name in the text",
        "score": "the name occurs, as a word, in the first line of the output; its log-probability "
        "is recorded too",
        "base": "mean over 250, 500 and 1,000 tokens; a length that keeps 0.85 of it is effective",
    }
    quick = {"lengths": (250, 500), "depths": 2, "needles": 3}
    quick_short = {"lengths": (250,)}

    lengths: tuple[int, ...] | None = None
    """Tokens of text. Default: those of 250, 500, 1K, 2K, ... 32K that fit with the prompt."""
    depths: int = 26  # of the needle, evenly spaced from 0 to 100 percent
    needles: int = len(NEEDLES)  # the first of the list
    max_new_tokens: int = 16
    seed: int = 42

    def __post_init__(self) -> None:
        self.require_at_least(2, "depths")
        self.require_at_least(1, "lengths", "max_new_tokens")
        self.require_at_least(1, "needles", most=len(NEEDLES))

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One text per batch, with all its questions, so that it is read once."""
        needles = NEEDLES[: self.needles]
        prompts = [
            self.prompt(model, _QUESTION.format(text="", question=n[kind]))
            for n in needles
            for kind in KINDS
        ]
        longest_prompt = max(self.count(model, prompt) for prompt in prompts)
        # Text and prompt together may have a few more tokens than separately.
        overhead = longest_prompt + self.max_new_tokens + 8
        lengths = self.lengths_that_fit(model, _STANDARD, overhead=overhead)
        texts = [needle["text"].format(name=name) for needle in needles for name in NAMES]
        least = max(len(model.encode(text)) for text in texts)
        if min(lengths) < 2 * least:
            raise ConfigError(
                f"hidden_needle: lengths must be {2 * least} tokens or more, twice the longest "
                f"needle with this tokenizer, got {min(lengths)}."
            )
        longest = max(lengths)
        self.require_words(model, longest)
        return [
            [
                Item(
                    id=f"{length}-{number}-{step}-{kind}",
                    payload=(length, number, step, kind, longest),
                    cluster=str(number),  # a model knows a fact in all texts or in none
                )
                for kind in KINDS
            ]
            for length in lengths
            for number in range(self.needles)
            for step in range(self.depths)
        ]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        length, number, step, _, longest = items[0].payload
        needle, background = NEEDLES[number], self.words(longest)
        text, name, tokens, place = self._text(model, background, length, number, step)
        present = [other for other in NAMES if names(text, other)]
        kinds = [item.payload[3] for item in items]
        texts = [
            self.prompt(model, _QUESTION.format(text=text, question=needle[kind])) for kind in kinds
        ]
        done = model.complete(
            texts, [name] * len(texts), max_new_tokens=self.max_new_tokens, chat=self.chat
        )
        return [
            {
                "length": length,
                "depth": 100 * step / (self.depths - 1),
                "kind": kind,
                "needle": needle["text"].format(name=name),
                "question": needle[kind],
                "expected": name,
                "output": completion.text,
                "text_tokens": tokens,
                "prompt_tokens": completion.prompt_tokens,
                "prompt": prompt_facts(completion.prompt),
                "place": place,
                "haystack": background.sha256,
                "names_in_text": present,
                **guess_shares(
                    1, len(present), int(sum(names(completion.text, other) for other in present))
                ),
                "scores": {
                    _SCORE[kind]: names(completion.text, name),
                    _LOGPROB[kind]: completion.logprob_per_token,
                },
            }
            for kind, completion in zip(kinds, done, strict=True)
        ]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        lengths = sorted({int(row["length"]) for row in rows})
        hops = [row for row in rows if row["kind"] != "literal"]
        metrics: list[Metric] = []
        for length in lengths:
            metrics += _mean(hops, headline=True, length=length)
            for kind in KINDS:
                metrics += _mean(rows, length=length, kind=kind)
            for depth in sorted({row["depth"] for row in rows_with(hops, length=length)}):
                metrics += _mean(hops, length=length, depth=depth)
        scores = {m.where["length"]: m.value for m in metrics if m.headline}
        base_lengths = [length for length in BASE_LENGTHS if length in scores]
        base = sum(scores[n] for n in base_lengths) / len(base_lengths) if base_lengths else None
        if base is not None:
            # A base over fewer lengths is another number, so ``where`` names the lengths.
            where = {} if len(base_lengths) == len(BASE_LENGTHS) else {"over": str(base_lengths)}
            n = len({row["cluster"] for row in hops if row["length"] in base_lengths})
            metrics.append(Metric(name="base_score", value=base, n=n, where=where, headline=True))
            # With a base score of 0 every length would keep it, so no length is effective.
            kept = scores if base > 0 else {}
            metrics.append(length_metric("effective_length", kept, KEPT * base, len(hops), where))
        tables = {
            "base_lengths": base_lengths,
            "threshold": KEPT,
            "haystack_sha256": sorted({row["haystack"] for row in rows}),
        }
        return Summary(metrics=metrics, tables=tables)

    def _text(
        self, model: LanguageModel, background: HaystackWords, length: int, number: int, step: int
    ) -> tuple[str, str, int, float]:
        """Text with needle, its name, its number of tokens, and the needle's place in percent."""
        draw = Random(f"{self.seed}-{length}-{number}-{step}")
        first = draw.randrange(len(background.starts))
        # A word has at least one token, so a text of ``length`` tokens has at most that many words.
        around = " ".join(background.passage(first, min(length, len(background.words))))
        free = [name for name in draw.sample(NAMES, len(NAMES)) if not names(around, name)]
        if not free:
            raise ItemError(f"hidden_needle: text {length}-{number}-{step} has all names in it.")
        needle = NEEDLES[number]["text"].format(name=free[0])

        def hide(num_words: int) -> tuple[str, float]:
            sentences = background.passage(first, num_words)
            ends = [0, *itertools.accumulate(len(sentence.split()) for sentence in sentences)]
            wanted = step / (self.depths - 1) * num_words
            gap = min(range(len(ends)), key=lambda i: abs(ends[i] - wanted))
            text = " ".join(insert_sentences(sentences, [gap], [needle]))
            return text, 100 * ends[gap] / max(1, num_words)

        num_words = most_that_fits(
            lambda n: len(model.encode(hide(n)[0])), length, least=0, most=len(background.words)
        )
        assert num_words is not None, "batches() has measured every needle"
        text, place = hide(num_words)
        return text, free[0], len(model.encode(text)), round(place, 1)


def names(output: str, name: str) -> float:
    """1 if the first line of ``output`` has the name as a whole word, else 0."""
    first = output.strip().split("\n", maxsplit=1)[0]
    return float(re.search(rf"\b{re.escape(name)}\b", first) is not None)


def _mean(rows: Sequence[Mapping[str, Any]], headline: bool = False, **where: Any) -> list[Metric]:
    """The mean score of the rows with these values, if there are any."""
    chosen = rows_with(rows, **where)
    if not chosen:
        return []
    scores = [row["scores"][_SCORE[row["kind"]]] for row in chosen]
    interval = share_interval(scores, [row["cluster"] for row in chosen])
    return [metric("contains", interval, where=where, headline=headline)]
