"""How much faster is many-shot learning with its demonstrations read once?

Times 250 questions on one demonstration prefix, as the protocol ``many_shot`` asks them, against
the same questions with every prompt read from scratch, in three ways:

``once per question``   the prompt is read once and gives both predictions: the strongest baseline
``decoding``            greedy decoding within the labels, prompt by prompt
``labels``              one row per label and prompt, as likelihood scorers do

Both sides must predict the same, and their log-probabilities agree within rounding: in float64 to
1e-12 of their size, in float32 within twice what reading from scratch is away from float64. From
scratch is timed on few questions and told per question. Processor time of one thread, the ways in
turn, medians over rounds.

    PYTHONPATH=src python -m tools.many_shot --data ICL_FOLDER --out FILE.json \\
        softmax=RUN diff=RUN ...
"""

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from diffattn.files.io import write_json
from diffattn.lab.evaluation.icl.demonstrations import IclTask
from diffattn.lab.inference.label_trie import LabelReading
from diffattn.lab.inference.labels import labelled
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.scoring import Continuation
from diffattn.lab.records.run import git_state, hardware, package_versions

GOAL = 20.0


class Timed:
    """Runs a function and keeps the processor time of every run."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run
        self.seconds: list[float] = []
        self.result: Any = None

    def __call__(self) -> None:
        """Run once."""
        began = time.process_time()
        self.result = self.run()
        self.seconds.append(time.process_time() - began)


class Prompts:
    """A prefix of demonstrations, and the questions asked behind it.

    Args:
        model: Whose tokenizer encodes them.
        task: The data set.
        prefix_tokens: Tokens of the demonstrations, at least.
        num_scratch: Questions that are also asked with the whole prompt.
    """

    def __init__(
        self, model: LanguageModel, task: IclTask, prefix_tokens: int, num_scratch: int
    ) -> None:
        pieces = task.encode(model, task.rounds(0))
        self.task = task
        self.num_demonstrations = 0
        self.prefix: list[int] = []
        while len(self.prefix) < prefix_tokens:
            self.prefix += pieces[self.num_demonstrations]
            self.num_demonstrations += 1
        self.questions = list(task.questions.values())
        self.whole = [[*self.prefix, *question] for question in self.questions[:num_scratch]]

    def read_shared(self, model: LanguageModel, count: int | None = None) -> list[LabelReading]:
        """Ask the first ``count`` questions (default: all), the prefix read once."""
        before = model.read(self.prefix)
        return model.read_labels(self.task.trie, self.questions[:count], before=before)

    def read_each(self, model: LanguageModel) -> list[LabelReading]:
        """Read every whole prompt once."""
        readings = []
        for prompt in self.whole:
            before = model.read(prompt[:-1])
            readings += model.read_labels(self.task.trie, [prompt[-1:]], before=before)
        return readings

    def decode(self, model: LanguageModel) -> list[str]:
        """Decode greedily within the labels, prompt by prompt."""
        trie = self.task.trie
        answers = model.generate(
            self.whole, max_new_tokens=trie.longest, share=False,
            allowed=lambda _, ids: trie.allowed(ids),
        )  # fmt: skip
        return [answer.text.strip() for answer in answers]

    def score_labels(self, model: LanguageModel) -> list[list[float]]:
        """One row per label of the first question: the others take as long."""
        rows = [Continuation(tuple(self.whole[0]), path) for path in self.task.trie.paths]
        return [[row.logprob for row in model.score(rows, share=False)]]


def bench(model: LanguageModel, wide: LanguageModel, prompts: Prompts, rounds: int) -> dict:
    """Check and time one model."""
    ways = {
        "shared": Timed(partial(prompts.read_shared, model)),
        "once per question": Timed(partial(prompts.read_each, model)),
        "decoding": Timed(partial(prompts.decode, model)),
        "labels": Timed(partial(prompts.score_labels, model)),
    }
    for round_ in range(rounds + 1):  # the first warms up and is not counted
        for way in ways.values():
            way()
        if round_ == 0:
            for way in ways.values():
                way.seconds.clear()
    num_questions = {name: len(prompts.whole) for name in ways}
    num_questions |= {"shared": len(prompts.questions), "labels": 1}
    per_question = {name: median(way.seconds) / num_questions[name] for name, way in ways.items()}
    ratios = {name: s / per_question["shared"] for name, s in per_question.items()}
    del ratios["shared"]
    facts = model.facts()
    return {
        "attention": facts["attention_type"] or facts["type"],
        "parameters": facts["parameters"],
        "demonstrations": prompts.num_demonstrations,
        "prefix_tokens": len(prompts.prefix),
        "question_tokens": median(map(len, prompts.questions)),
        "questions": len(prompts.questions),
        "labels": len(prompts.task.trie.labels),
        "seconds": {name: way.seconds for name, way in ways.items()},
        "seconds_per_question": per_question,
        "times_as_fast_as": ratios,
        "goal_met": min(ratios.values()) >= GOAL,
        "check": check(model, wide, prompts, {name: way.result for name, way in ways.items()}),
    }


def check(
    model: LanguageModel, wide: LanguageModel, prompts: Prompts, results: dict[str, Any]
) -> dict[str, Any]:
    """Compare predictions and log-probabilities with those from scratch; exit if they differ."""
    count, trie = len(prompts.whole), prompts.task.trie
    shared, scratch = results["shared"], results["once per question"]
    same = [
        (a.greedy, a.likeliest) == (b.greedy, b.likeliest) and trie.labels[a.greedy] == text
        for a, b, text in zip(shared, scratch, results["decoding"], strict=False)
    ]
    exact = logprobs(prompts.read_each(wide))
    in_wide = logprobs(prompts.read_shared(wide, count))
    eps, size = torch.finfo(torch.float32).eps, float(exact.abs().max())
    error = float((logprobs(shared[:count]) - exact).abs().max())
    error_scratch = float((logprobs(scratch) - exact).abs().max())
    error_wide = float((in_wide - exact).abs().max())
    label_error = float((logprobs(shared[:1]) - torch.tensor(results["labels"])).abs().max())
    budget = 2 * (error_scratch + eps * size)
    if not all(same) or error > budget or error_wide > 1e-12 * size:
        raise SystemExit(f"{model.label}: results differ: {same}, {error}, {budget}, {error_wide}")
    return {
        "questions_compared": count,
        "predictions_equal": True,
        "largest_logprob": size,
        "float32_error": error,
        "float32_error_from_scratch": error_scratch,
        "float32_budget": budget,
        "float32_difference_to_rows_per_label": label_error,
        "float64_difference": error_wide,
    }


def logprobs(readings: Sequence[LabelReading]) -> torch.Tensor:
    """float64 ``[questions, labels]``."""
    return torch.tensor([reading.logprobs for reading in readings], dtype=torch.float64)


def main() -> None:
    """Bench every model and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="[LABEL=]PATH")
    parser.add_argument("--data", required=True, help="folder with the original files")
    parser.add_argument("--dataset", default="trec")
    parser.add_argument("--prefix-tokens", type=int, default=4_096)
    parser.add_argument("--questions", type=int, default=250)
    parser.add_argument("--scratch-items", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for label, path in labelled(args.models).items():
        longest = args.prefix_tokens + 2_048
        model, wide = (
            LanguageModel.load(path, label=label, device="cpu", max_length=longest)
            for _ in range(2)
        )
        wide.network.double()
        task = IclTask(model, args.dataset, args.data, args.questions, seed=43)
        prompts = Prompts(model, task, args.prefix_tokens, args.scratch_items)
        rows[label] = bench(model, wide, prompts, args.rounds)
        ratios = rows[label]["times_as_fast_as"]
        print(label, ", ".join(f"{r:.1f} × {name}" for name, r in ratios.items()), flush=True)
    commit, dirty = git_state()
    record = {
        "schema": 1,
        "kind": "many-shot benchmark",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": dirty,
        "versions": package_versions(),
        "hardware": hardware() | {"threads": 1, "clock": "processor time"},
        "goal": f"at least {GOAL:g} times as fast as every way from scratch",
        "models": rows,
    }
    write_json(args.out, record)


if __name__ == "__main__":
    main()
