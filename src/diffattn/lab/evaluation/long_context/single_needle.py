"""One sentence hidden in a long text, and texts without it as controls."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.haystack import (
    HaystackProtocol,
    HaystackTokens,
    corpus_text,
    encode_within,
    forced_answer,
    insert_tokens,
)
from diffattn.lab.evaluation.metrics import rows_with, score_metric
from diffattn.lab.evaluation.protocol import Item, Summary
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import Prefix
from diffattn.lab.inference.scoring import Continuation

PHRASE = "eat a sandwich and sit in Dolores Park on a sunny day"
_STEM = "The best thing to do in San Francisco is"
_INSTRUCTION = (
    "Answer the question with words from the text below. If the text does not contain the answer, "
    "write UNANSWERABLE.\n\n"
)
_QUESTION = "\n\nQuestion: What is the best thing to do in San Francisco?\nAnswer:"
_STEPS = 14  # 15 depths and 15 lengths


@dataclass(frozen=True, slots=True)
class SinglePrompt:
    """A text with or without the needle, and the question."""

    ids: tuple[int, ...]
    depth: float | None  # wanted, in percent; ``None`` in a control, which has no needle
    realised: float | None  # depth of the sentence end before it, in percent
    haystack: HaystackTokens


@dataclass(frozen=True, kw_only=True)
class SingleNeedle(HaystackProtocol):
    """The San Francisco sentence at 15 depths of texts of 15 lengths, scored without a judge.

    Each text is also asked without the needle, as a control: a model may always answer, always
    refuse, or know the sentence, which is common on the web.
    """

    name = "single_needle"
    choices = {
        "score": "exact match: the key phrase stands in the output (case and white space aside) "
        "and 'UNANSWERABLE' does not; no judge",
        "prompt": "an instruction to answer from the text or to write UNANSWERABLE, the text, "
        "question and 'Answer:'; greedy, up to a line end or 16 tokens more than the phrase has",
        "controls": "one per text: the same text without the needle, filled up to the same length; "
        "what is scored there as if it were right was not read",
        "forced": "beside it the phrase after 'The best thing to do in San Francisco is', given: "
        "its log-probability with and without the needle in the text",
        "grid": "lengths evenly from 1,024 to 16,384 tokens (the reference: 1,000 to 16,000), "
        "depths evenly from 0 to 100",
        "depth": "in tokens of the text, back to the last sentence end",
        "haystack": "one text per length and sample from a random sentence on; never repeated",
        "intervals": "Wilson for a cell; over several, of the effective number of texts",
    }
    quick = {"lengths": (384, 512), "depths": (0, 50, 100)}
    quick_context = "lengths"

    lengths: tuple[int, ...] = tuple(round(1_024 + i * 15_360 / _STEPS) for i in range(_STEPS + 1))
    """Lengths in tokens, room for the answer included."""
    depths: tuple[float, ...] = tuple(round(100 * i / _STEPS) for i in range(_STEPS + 1))
    """Depths of the needle in percent."""
    samples: int = 1
    """Number of texts per length."""
    seed: int = 1234

    def __post_init__(self) -> None:
        self.require_depths(self.depths)
        self.require_at_least(1, "lengths", "samples")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One text per batch, with the needle at all depths and without it."""
        self.require_fit(model, "lengths", max(self.lengths))
        if PHRASE in " ".join(corpus_text(self.haystack, self.text_field).split()):
            raise ConfigError(
                f"single_needle: the haystack must not hold the needle, got it in "
                f"{self.haystack!r}. Choose another text."
            )
        for length in {min(self.lengths), max(self.lengths)}:
            self._prompts(model, length, 0, [None])  # raises early if a text is too short
        return [
            [
                Item(
                    id=f"{length}/{sample}/{'control' if depth is None else f'{depth:g}'}",
                    payload=(length, sample, depth),
                    cluster=f"{length}/{sample}",
                )
                for depth in (*self.depths, None)
            ]
            for length in self.lengths
            for sample in range(self.samples)
        ]

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Read each prompt once, generate an answer, and score the phrase."""
        length, sample, _ = items[0].payload
        prompts = self._prompts(model, length, sample, [item.payload[-1] for item in items])
        facts = {"length": length, "sample": sample}
        return self.read_rows(model, prompts, lambda *read: facts | _row(model, *read))

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Accuracy over all items, per length and per cell; refusals with and without needle."""
        needles = [row for row in rows if row["depth"] is not None]
        controls = [row for row in rows if row["depth"] is None]
        metrics = [
            *score_metric("accuracy", needles, {}, headline=True),
            *score_metric("control_accuracy", controls, {}, headline=True, higher_is_better=None),
            *score_metric("false_refusal", needles, {}, headline=True, higher_is_better=False),
            *score_metric("refusal", controls, {}, headline=True),
            *score_metric("phrase_greedy", needles, {}),
            *score_metric("logprob_per_token", needles, {}),
            *score_metric("control_logprob_per_token", controls, {}, higher_is_better=None),
        ]
        grid: dict[str, Any] = {"lengths": self.lengths, "depths": self.depths, "accuracy": []}
        for depth in self.depths:
            wheres = [{"length": length, "depth": depth} for length in self.lengths]
            cells = [score_metric("accuracy", rows_with(needles, **w), w) for w in wheres]
            metrics += itertools.chain(*cells)
            grid["accuracy"].append([cell[0].value if cell else None for cell in cells])
        for where in ({"length": length} for length in self.lengths):
            without = rows_with(controls, **where)
            metrics += score_metric("accuracy", rows_with(needles, **where), where)
            metrics += score_metric("refusal", without, where)
            metrics += score_metric("control_accuracy", without, where, higher_is_better=None)
        return Summary(metrics=metrics, tables={"grid": grid})

    def _prompts(
        self, model: LanguageModel, length: int, sample: int, depths: Sequence[float | None]
    ) -> list[SinglePrompt]:
        """Prompts over one text, all with equally many tokens; depth ``None`` is the control."""
        needle = encode_within(model, f"\n{_STEM} {PHRASE}.\n")
        head = [*model.start(), *model.encode(_INSTRUCTION)]
        tail = encode_within(model, _QUESTION)
        forced, new_tokens = _answers(model)
        room = max(new_tokens, len(forced.context) + len(forced.target))
        size = length - room - len(head) - len(tail) - len(needle)
        if size < 1:
            raise ConfigError(
                f"single_needle: lengths must hold instruction, question, needle, answer and text "
                f"of {model.label}: {length - size + 1} tokens or more, got {length}."
            )
        key = f"{self.seed}-{length}-{sample}-text"
        without, around = (self.stretch(model, key, n) for n in (size + len(needle), size))
        prompts = []
        for depth in depths:
            text, context, realised = without, list(without.ids), None
            if depth is not None:
                text, realised = around, 100 * around.slot(depth) / size
                context, _ = insert_tokens(around.ids, [(around.slot(depth), needle)])
            ids = (*head, *context, *tail)
            prompts.append(SinglePrompt(ids, depth, realised, text))
        return prompts


def _answers(model: LanguageModel) -> tuple[Continuation, int]:
    """The phrase after the needle's words, given; and most tokens of a generated answer."""
    forced = forced_answer(model, f" {_STEM}", PHRASE)
    return forced, len(encode_within(model, f" {PHRASE}")) + 16


def _row(model: LanguageModel, prompt: SinglePrompt, prefix: Prefix) -> dict[str, Any]:
    """The row of a prompt; ``prefix`` holds all its tokens but the last."""
    last, (forced, new_tokens) = prompt.ids[-1:], _answers(model)
    (written,) = model.generate([last], max_new_tokens=new_tokens, stop=("\n",), before=prefix)
    (phrase,) = model.score([Continuation((*last, *forced.context), forced.target)], before=prefix)
    output = " ".join(written.text.lower().split())
    refused = "unanswerable" in output
    recalled = PHRASE.lower() in output and not refused
    logprob = phrase.logprob / len(phrase.token_logprobs)
    scores = {
        "accuracy": float(recalled),
        "false_refusal": float(refused),
        "phrase_greedy": float(phrase.is_greedy),
        "logprob_per_token": logprob,
    }
    if prompt.depth is None:
        scores = {
            "refusal": float(refused),
            "control_accuracy": float(recalled),
            "control_logprob_per_token": logprob,
        }
    return {
        "realised": None if prompt.realised is None else round(prompt.realised, 3),
        "output": written.text,
        "finished": written.finished,
        "scores": scores,
    }
