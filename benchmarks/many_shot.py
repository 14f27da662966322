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

    python benchmarks/many_shot.py --data ICL_FOLDER --out FILE.json softmax=RUN diff=RUN ...
"""

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
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
        self.run, self.seconds, self.result = run, [], None

    def __call__(self) -> None:
        """One run."""
        began = time.process_time()
        self.result = self.run()
        self.seconds.append(time.process_time() - began)


def bench(model: LanguageModel, wide: LanguageModel, task: IclTask, args: Any) -> dict[str, Any]:
    """Check and time one model."""
    pieces = task.encode(model, task.rounds(0))
    count, tokens = 0, list[int]()
    while len(tokens) < args.prefix_tokens:
        tokens += pieces[count]
        count += 1
    questions = list(task.questions.values())
    few = [[*tokens, *one] for one in questions[: args.scratch_items]]
    labels = [[(*prompt, *path) for path in task.trie.paths] for prompt in few]

    def once(of: LanguageModel, asked: Sequence[Sequence[int]]) -> list[LabelReading]:
        found = []
        for prompt in asked:
            prefix = of.read(prompt[:-1])
            found += of.read_labels(task.trie, [prompt[-1:]], before=prefix)
        return found

    def by_label() -> list[list[float]]:
        asked = [
            Continuation(tuple(few[0]), path[len(few[0]) :]) for path in labels[0]
        ]  # one question: the others take as long
        return [[one.logprob for one in model.score(asked, share=False)]]

    ways = {
        "shared": Timed(
            lambda: model.read_labels(task.trie, questions, before=model.read(tokens))
        ),
        "once per question": Timed(lambda: once(model, few)),
        "decoding": Timed(
            lambda: model.generate(
                few, max_new_tokens=task.trie.longest, share=False,
                allowed=lambda _, ids: task.trie.allowed(ids),
            )
        ),
        "labels": Timed(by_label),
    }  # fmt: skip
    for round_ in range(args.rounds + 1):  # the first warms up and is not counted
        for way in ways.values():
            way()
        if round_ == 0:
            for way in ways.values():
                way.seconds.clear()

    shared, scratch = ways["shared"].result, ways["once per question"].result
    written = [one.text.strip() for one in ways["decoding"].result]
    same = [
        (a.greedy, a.likeliest) == (b.greedy, b.likeliest) and task.trie.labels[a.greedy] == text
        for a, b, text in zip(shared, scratch, written, strict=False)
    ]
    exact = logprobs(once(wide, few))
    in_wide = logprobs(wide.read_labels(task.trie, questions[: len(few)], before=wide.read(tokens)))
    eps, size = torch.finfo(torch.float32).eps, float(exact.abs().max())
    error = float((logprobs(shared[: len(few)]) - exact).abs().max())
    error_scratch = float((logprobs(scratch) - exact).abs().max())
    error_wide = float((in_wide - exact).abs().max())
    label_error = float((logprobs(shared[:1]) - torch.tensor(ways["labels"].result)).abs().max())
    budget = 2 * (error_scratch + eps * size)
    if not all(same) or error > budget or error_wide > 1e-12 * size:
        raise SystemExit(f"{model.label}: results differ: {same}, {error}, {budget}, {error_wide}")
    per_question = {
        name: median(way.seconds) / {"shared": len(questions), "labels": 1}.get(name, len(few))
        for name, way in ways.items()
    }
    ratios = {name: s / per_question["shared"] for name, s in per_question.items()}
    return {
        "attention": model.facts()["attention_type"] or model.facts()["type"],
        "parameters": model.facts()["parameters"],
        "demonstrations": count,
        "prefix_tokens": len(tokens),
        "question_tokens": median(map(len, questions)),
        "questions": len(questions),
        "labels": len(task.trie.labels),
        "seconds": {name: way.seconds for name, way in ways.items()},
        "seconds_per_question": per_question,
        "times_as_fast_as": {name: r for name, r in ratios.items() if name != "shared"},
        "goal_met": min(ratios[name] for name in ratios if name != "shared") >= GOAL,
        "check": {
            "questions_compared": len(few),
            "predictions_equal": True,
            "largest_logprob": size,
            "float32_error": error,
            "float32_error_from_scratch": error_scratch,
            "float32_budget": budget,
            "float32_difference_to_rows_per_label": label_error,
            "float64_difference": error_wide,
        },
    }


def logprobs(readings: Sequence[LabelReading]) -> torch.Tensor:
    """float64 ``[questions, labels]``."""
    return torch.tensor([one.logprobs for one in readings], dtype=torch.float64)


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
        rows[label] = bench(model, wide, task, args)
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
