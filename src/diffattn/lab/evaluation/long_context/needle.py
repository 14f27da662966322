"""Multi-needle retrieval: magic numbers of cities, hidden in a long text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diffattn.errors import ConfigError, check_known
from diffattn.lab.evaluation.long_context.haystack import encode_within
from diffattn.lab.evaluation.long_context.magic_numbers import (
    CITIES,
    TEMPLATES,
    MagicPrompt,
    MagicProtocol,
    answer,
    forced_number,
)
from diffattn.lab.evaluation.metrics import guess_metrics, guess_shares, rows_with, score_metric
from diffattn.lab.evaluation.protocol import Item, Summary
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import Prefix
from diffattn.lab.records.evaluations import Metric

_GRID = ("recall", "all_correct")
_SCORES = (*_GRID, "digits_greedy", "logprob_per_token")


@dataclass(frozen=True, kw_only=True)
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
    quick_context = "lengths"

    tasks: tuple[tuple[int, int], ...] = ((1, 1), (2, 2), (4, 2), (6, 2))
    """(N, R): number of hidden cities, and of cities in the question."""
    lengths: tuple[int, ...] = (4_096,)
    """Lengths in tokens, room for the answer included."""
    prompt: str = "completion"
    """A name in ``TEMPLATES``: ``"completion"`` or ``"lwm"``."""

    def __post_init__(self) -> None:
        if not self.tasks or any(not 1 <= r <= n <= len(CITIES) for n, r in self.tasks):
            raise ConfigError(
                f"needle: tasks must be (N, R) with 1 <= R <= N <= {len(CITIES)} cities, "
                f"got {self.tasks}."
            )
        self.require_depths(self.depths)
        self.require_at_least(1, "lengths", "samples")
        check_known(self.name, "prompt", self.prompt, TEMPLATES)

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        """One haystack and one (N, R) per batch, with all depths: the prompts share a prefix."""
        self.require_fit(model, "lengths", max(self.lengths))
        for n, r in self.tasks:
            for length in {min(self.lengths), max(self.lengths)}:
                self.require_prompt(model, **self._settings(model, n, r, length, 0))
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
        """Read each prompt once, generate an answer, and score the right answers."""
        settings = self._settings(model, *items[0].payload[:-1])
        prompts = self.build_prompts(model, [item.payload[-1] for item in items], **settings)
        return self.read_rows(model, prompts, lambda *read: _row(model, settings, *read))

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Means over depths for each (N, R) and length, and every cell of the grid."""
        metrics: list[Metric] = []
        grids = []
        for n, r in self.tasks:
            of_task, task = rows_with(rows, needles=n, asked=r), {"task": f"N={n}, R={r}"}
            # With R = 1 both scores are the same.
            printed = _GRID if r > 1 else _GRID[:1]
            grid: dict[str, Any] = {key: [] for key in (*_GRID, "n")}
            for depth in self.depths:
                cells = []
                for length in self.lengths:
                    chosen = rows_with(of_task, length=length, depth=depth)
                    where = task | {"length": length, "depth": depth}
                    means = [mean for name in _GRID for mean in score_metric(name, chosen, where)]
                    metrics += [mean for mean in means if mean.name in printed]
                    cells.append({mean.name: mean.value for mean in means} | {"n": len(chosen)})
                for key, column in grid.items():
                    column.append([cell.get(key) for cell in cells])  # None: no item was scored
            axes = {"lengths": self.lengths, "depths": self.depths}
            grids.append({"needles": n, "asked": r} | axes | grid)
            for length in self.lengths:
                chosen, where = rows_with(of_task, length=length), task | {"length": length}
                for name in _SCORES:
                    if r > 1 or name != "all_correct":
                        metrics += score_metric(name, chosen, where, headline=name in printed)
                metrics += guess_metrics(chosen, where)
        return Summary(metrics=metrics, tables={"grids": grids})

    def _settings(
        self, model: LanguageModel, n: int, r: int, length: int, sample: int
    ) -> dict[str, Any]:
        """Settings of the prompts, with room for the answer."""
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
