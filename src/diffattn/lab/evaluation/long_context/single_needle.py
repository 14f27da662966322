"""One sentence hidden in a long text, and texts without it: is it found, is it missed?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.haystack import (
    corpus_text,
    encode_within,
    insert_tokens,
    random_start,
    read_haystack_tokens,
)
from diffattn.lab.evaluation.long_context.lengths import require_grid
from diffattn.lab.evaluation.metrics import score_metric
from diffattn.lab.evaluation.protocol import Item, Protocol, Summary, prompt_facts
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
_REFUSAL = "unanswerable"
_STEPS = 14  # 15 depths and 15 lengths


@dataclass(frozen=True, kw_only=True, slots=True)
class SinglePrompt:
    """One text with the needle, or without it, and the question."""

    ids: tuple[int, ...]
    depth: float | None
    """Asked for, in percent; ``None`` in a control, which has no needle."""
    realised: float | None
    haystack: str
    """Digest of the text."""


@dataclass(frozen=True, kw_only=True)
class SingleNeedle(Protocol):
    """The San Francisco sentence at 15 depths of texts of 15 lengths, without a judge.

    A model that always answers finds every needle and refuses nothing; one that always refuses
    does the opposite; one that knows the sentence, which the web is full of, need not read. So
    every text is asked once without the needle, and all three rates are given.

    Source: G. Kamradt, LLMTest_NeedleInAHaystack (sentence, question, grid).
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

    lengths: tuple[int, ...] = tuple(round(1_024 + i * 15_360 / _STEPS) for i in range(_STEPS + 1))
    """In tokens."""
    depths: tuple[float, ...] = tuple(round(100 * i / _STEPS) for i in range(_STEPS + 1))
    """In percent."""
    samples: int = 1
    """Texts per length."""
    haystack: str = "stdlib"
    """Text to hide in: ``stdlib``, a file, a folder, a ``.jsonl`` file or ``hub:NAME``."""
    text_field: str = "text"
    """Key of the text where the haystack is JSON lines or from the hub."""
    seed: int = 1234

    def __post_init__(self) -> None:
        require_grid(self.name, self.lengths, self.depths)
        self.require_at_least(1, "samples")

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One text per batch, at all depths and without the needle."""
        self.require_fit(model, "lengths", max(self.lengths))
        if PHRASE in " ".join(corpus_text(self.haystack, self.text_field).split()):
            raise ConfigError(
                f"single_needle: the haystack must not hold the needle, got it in "
                f"{self.haystack!r}. Choose another text."
            )
        for length in {min(self.lengths), max(self.lengths)}:
            self._prompts(model, length, 0, [None])  # a text that is too short is refused early
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

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        """The haystack."""
        return corpus_text(self.haystack, self.text_field)

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Read each prompt once; generate, and score the phrase."""
        length, sample, _ = items[0].payload
        prompts = self._prompts(model, length, sample, [item.payload[-1] for item in items])
        rows: dict[int, dict[str, Any]] = {}
        for i, prefix in model.read_prompts([prompt.ids for prompt in prompts]):
            rows[i] = {"length": length, "sample": sample} | _row(model, prompts[i], prefix)
            del prefix  # the next prompt is read only now: one less in memory
        return [rows[i] for i in range(len(items))]

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Accuracy over all, per length and per cell; both refusal rates."""
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
            grid["accuracy"].append([])
            for length in self.lengths:
                chosen = [r for r in needles if (r["length"], r["depth"]) == (length, depth)]
                cell = score_metric("accuracy", chosen, {"length": length, "depth": depth})
                metrics += cell
                grid["accuracy"][-1].append(cell[0].value if cell else None)
        for length in self.lengths:
            chosen = [row for row in needles if row["length"] == length]
            metrics += score_metric("accuracy", chosen, {"length": length})
            chosen = [row for row in controls if row["length"] == length]
            metrics += score_metric("refusal", chosen, {"length": length})
            metrics += score_metric(
                "control_accuracy", chosen, {"length": length}, higher_is_better=None
            )
        return Summary(metrics=metrics, tables={"grid": grid})

    def _prompts(
        self, model: LanguageModel, length: int, sample: int, depths: Sequence[float | None]
    ) -> list[SinglePrompt]:
        """Prompts over one text, all equally long; depth ``None`` is the control.

        Raises:
            ConfigError: The corpus is too short, or the length.
        """
        key = f"{self.seed}-{length}-{sample}"
        needle = encode_within(model, f"\n{_STEM} {PHRASE}.\n")
        head = [*model.start(), *model.encode(_INSTRUCTION)]
        tail = encode_within(model, _QUESTION)
        forced = _forced(model)
        room = max(_new_tokens(model), len(forced.context) + len(forced.target))
        size = length - room - len(head) - len(tail) - len(needle)
        if size < 1:
            raise ConfigError(
                f"single_needle: lengths must hold instruction, question, needle, answer and text "
                f"of {model.label}: {length - size + 1} tokens or more, got {length}."
            )
        start = random_start(corpus_text(self.haystack, self.text_field), Random(f"{key}-text"))
        without = read_haystack_tokens(
            model, self.haystack, start, size + len(needle), self.text_field
        )
        around = read_haystack_tokens(model, self.haystack, start, size, self.text_field)
        prompts = []
        for depth in depths:
            if depth is None:
                context, realised = list(without.ids), None
            else:
                context, _ = insert_tokens(around.ids, [(around.slot(depth), needle)])
                realised = 100 * around.slot(depth) / size
            prompts.append(
                SinglePrompt(
                    ids=(*head, *context, *tail),
                    depth=depth,
                    realised=realised,
                    haystack=(without if depth is None else around).digest(),
                )
            )
        assert all(len(prompt.ids) == length - room for prompt in prompts)
        return prompts


def _forced(model: LanguageModel) -> Continuation:
    """The answer in the needle's words: what is given, and the phrase."""
    given = encode_within(model, f" {_STEM}")
    whole = encode_within(model, f" {_STEM} {PHRASE}")
    return Continuation(tuple(given), tuple(whole[len(given) :]))


def _new_tokens(model: LanguageModel) -> int:
    """Longest generated answer."""
    return len(encode_within(model, f" {PHRASE}")) + 16


def _row(model: LanguageModel, prompt: SinglePrompt, prefix: Prefix) -> dict[str, Any]:
    """What a model makes of a prompt that was read up to its last token."""
    last = prompt.ids[-1:]
    (written,) = model.generate(
        [last], max_new_tokens=_new_tokens(model), stop=("\n",), before=prefix
    )
    forced = _forced(model)
    (phrase,) = model.score([Continuation((*last, *forced.context), forced.target)], before=prefix)
    output = " ".join(written.text.lower().split())
    refused = _REFUSAL in output
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
        "depth": prompt.depth,
        "realised": None if prompt.realised is None else round(prompt.realised, 3),
        "output": written.text,
        "finished": written.finished,
        "prompt_tokens": len(prompt.ids),
        "prompt": prompt_facts(model.decode(prompt.ids)),
        "haystack": prompt.haystack,
        "scores": scores,
    }
