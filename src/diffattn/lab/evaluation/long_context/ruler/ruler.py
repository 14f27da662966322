"""RULER: thirteen tasks of retrieval, tracing, counting and question answering, at any length."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from diffattn.errors import ConfigError, check_known
from diffattn.lab.evaluation.long_context.haystack import ChatProtocol
from diffattn.lab.evaluation.long_context.lengths import (
    by_length_and_task,
    length_metric,
    most_that_fits,
)
from diffattn.lab.evaluation.long_context.ruler.retrieval import (
    CommonWordsTask,
    FrequentWordsTask,
    NeedleTask,
    VariableTask,
)
from diffattn.lab.evaluation.long_context.ruler.samples import (
    Material,
    QuestionTask,
    RulerTask,
    Sample,
    read_questions,
    read_words,
    word_list,
)
from diffattn.lab.evaluation.metrics import GUESSES, NAMED, guess_metrics, rows_with
from diffattn.lab.evaluation.protocol import Item, Summary, prompt_facts, split_batches
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError

TASKS: dict[str, RulerTask] = {
    task.name: task
    for task in (
        NeedleTask(name="niah_single_1", haystack="noise"),
        NeedleTask(name="niah_single_2", haystack="essay"),
        NeedleTask(name="niah_single_3", haystack="essay", value_kind="uuids"),
        NeedleTask(name="niah_multikey_1", haystack="essay", num_keys=4),
        NeedleTask(name="niah_multikey_2", haystack="needle"),
        NeedleTask(name="niah_multikey_3", haystack="needle", key_kind="uuids", value_kind="uuids"),
        NeedleTask(name="niah_multivalue", haystack="essay", num_values=4),
        NeedleTask(name="niah_multiquery", haystack="essay", num_queries=4),
        VariableTask(name="vt"),
        CommonWordsTask(name="cwe"),
        FrequentWordsTask(name="fwe"),
        QuestionTask(name="qa_1"),
        QuestionTask(name="qa_2"),
    )
}
"""Name to task, in the order of RULER's tables."""
THIN_TASKS: dict[str, RulerTask] = {
    "cwe": CommonWordsTask(name="cwe", example_words=20, example_repeats=(3, 1), repeats=(6, 1))
}
"""Name to the version of a task for contexts below 4,096 tokens, as in RULER."""
FILE_PARAMETERS = {"qa_1": "squad", "qa_2": "hotpotqa"}  # task to the parameter with its path
THRESHOLD = 0.856  # a length is effective from the mean score on that Llama-2-7B has at 4K


def needs_background(task: RulerTask) -> bool:
    """Whether the task hides needles in the background text."""
    return isinstance(task, NeedleTask) and task.haystack == "essay"


class Ruler(ChatProtocol):
    """Thirteen synthetic tasks per length, and the effective length of a model."""

    name = "ruler"
    choices = {
        "prompt": "completion with the answer prefix; by chat=true the tokenizer's chat template, "
        "prefix in the assistant's turn; no space at the end of a prompt (upstream's vt has one)",
        "length": "BOS, prompt and generation budget; every sample filled to its own largest "
        "number of words, lines or documents, by bisection",
        "haystack": "the corpus named, white space collapsed (upstream: Paul Graham's essays); "
        "from a random sentence on per sample, by haystack_start=beginning always from the "
        "beginning, as upstream",
        "sentences": "end at . ! ? or after 60 words (upstream: NLTK)",
        "keys": "adjective-noun pairs of lists written for this project, 197 by 324, or key_list "
        "(upstream: wonderwords' adjectives and nouns); no distractor has a key or value that is "
        "asked for, no value is a number of the haystack",
        "words": "cwe: real words of 5 to 9 letters from the documentation that Python carries, "
        "of which none lies within another, then pairs as the keys; or word_list (upstream: "
        "wonderwords' nouns, adjectives and verbs, then a list of English words)",
        "guess": "score of copying from the context without regard to the question, as many pieces "
        "as are asked for and as many as the output names: values drawn at random (expected), "
        "of cwe and fwe the first different words, of qa a stretch of the documents (mean); none "
        "where all values of the context are asked for",
        "lists": "cwe: 10 words 30 times among words 3 times; 6 and 1 below 4K (upstream's rule) "
        "and where the former do not fit, as with small vocabularies",
        "example": "cwe and vt show one worked example; that of vt has 10 lines of noise "
        "(upstream: as many as fill 500 tokens)",
        "questions": "qa_1 and qa_2: drawn at random from the whole file by the seed, without "
        "repeats, the same at every length (upstream: the first ones); left out of the mean where "
        "no file is given",
        "score": "upstream's: substring, case ignored; share of references found, for qa any",
        "logprob": "teacher-forced log-probability of the answer beside it, not part of RULER",
        "effective length": "longest length with a mean of 0.856 or more (Llama-2-7B at 4K)",
    }
    quick = {"lengths": (2_048,), "samples": 1}

    lengths: tuple[int, ...] | None = None
    """Lengths in tokens, generation included. Default: those of 4K, 8K, ... 128K that fit."""
    tasks: tuple[str, ...] | None = None
    """Names of tasks as in RULER. Default: all 13, without tasks whose file is not given."""
    samples: int = 500  # per task and length
    squad: str | None = None  # path of a SQuAD JSON file, for ``qa_1``
    hotpotqa: str | None = None  # path of a HotpotQA JSON file (distractor setting), for ``qa_2``
    haystack_start: str = "random"  # or the corpus's ``"beginning"``, for every sample
    word_list: str = "python"
    """Source of the words of ``cwe``: ``"python"`` (the documentation of this Python installation),
    or the path of a text file with one word per line."""
    key_list: str | None = None  # file with a key per line; default: adjective-noun pairs
    logprob: bool = True  # compute the log-probability of the right answer
    seed: int = 42

    def __post_init__(self) -> None:
        self.require_at_least(1, "lengths", "samples")
        check_known(self.name, "haystack_start", self.haystack_start, ("random", "beginning"))
        if self.tasks is not None:
            self.require_names("tasks", TASKS)
        for name, key in FILE_PARAMETERS.items():
            if name in (self.tasks or ()) and not getattr(self, key):
                raise ConfigError(
                    f"ruler: task {name!r} needs a file, got none. Name it: --set ruler.{key}=PATH"
                )

    def batches(self, model: LanguageModel) -> list[list[Item]]:
        lengths = self.lengths_that_fit(model)
        material = self._material(max(lengths))
        if material.background is not None:
            self.require_words(model, max(lengths))
        for name, asked in material.questions.items():
            if len(asked.questions) < self.samples:
                raise ConfigError(
                    f"ruler: the file of {name} must hold samples={self.samples} questions, "
                    f"got {len(asked.questions)}. Set fewer samples."
                )
        batches: dict[tuple[int, int], list[Item]] = {}
        for length in lengths:
            for task in self._tasks(model, length, material):
                batches.setdefault((length, task.max_new_tokens), []).extend(
                    Item(
                        id=f"{length}-{task.name}-{index}",
                        payload=(length, task, index, max(lengths)),
                        # Questions from files are the same at every length.
                        cluster=f"{task.name}-{index}" if task.name in FILE_PARAMETERS else None,
                    )
                    for index in range(self.samples)
                )
        return split_batches(list(batches.values()), 8)

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        return self._material(items[0].payload[-1])

    def ask(self, model: LanguageModel, items: Sequence[Item]) -> list[dict[str, Any]]:
        material = self._material(items[0].payload[3])
        asked = [
            (task, length, index, *self._fit(model, task, length, index, material))
            for length, task, index, _ in (item.payload for item in items)
        ]
        done = model.complete(
            [self.prompt(model, x.question, x.answer_prefix) for *_, x, _ in asked],
            [sample.answer for *_, sample, _ in asked] if self.logprob else None,
            max_new_tokens=asked[0][0].max_new_tokens,
            chat=self.chat,
        )
        rows: list[dict[str, Any]] = []
        for (task, length, index, sample, units), completion in zip(asked, done, strict=True):
            text = material.background if needs_background(task) else None
            words = material.words if task.name == "cwe" else None
            rows.append(
                {
                    "length": length,
                    "task": task.name,
                    "index": index,
                    "references": list(sample.references),
                    "output": completion.text,
                    "prompt_tokens": completion.prompt_tokens,
                    "prompt": prompt_facts(completion.prompt),
                    "units": units,
                    "haystack": text.sha256 if text else None,
                    **task.guesses(model, sample, completion.text),
                    **({} if words is None else {"words": words.sha256}),
                    **sample.notes,
                    "scores": {
                        "score": task.score(completion.text, sample.references),
                        "logprob_per_token": completion.logprob_per_token,
                    },
                }
            )
        return rows

    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        lengths = sorted({int(row["length"]) for row in rows})
        tasks = [name for name in TASKS if any(row["task"] == name for row in rows)]
        metrics, means, grid = by_length_and_task(rows, tasks, "score")
        name = f"effective_length_of_{len(tasks)}_tasks"
        metrics.append(length_metric(name, means, THRESHOLD, len(rows)))
        for task in ("cwe", "fwe"):  # a score must beat naming words without counting
            for length in lengths:
                where = {"length": length, "task": task}
                metrics += guess_metrics(rows_with(rows, **where), where)
        left_out = dict.fromkeys(TASKS, "not asked for")
        if self.tasks is None:
            left_out = {name: f"no file was given ({key})" for name, key in FILE_PARAMETERS.items()}
        axes: dict[str, Any] = {"lengths": lengths, "tasks": tasks}
        tables = {
            "scores": axes | {"score": grid},
            "guesses": axes | {kind: _grid(rows, kind, **axes) for kind in (GUESSES[0], NAMED)},
            "words_sha256": sorted({row["words"] for row in rows if "words" in row}),
            f"mean_of_{len(tasks)}_tasks": [
                {"length": length, "score": mean} for length, mean in means.items()
            ],
            "left_out": {k: why for k, why in left_out.items() if k not in self.chosen()},
            "threshold": THRESHOLD,
            "haystack_sha256": sorted({row["haystack"] for row in rows if row.get("haystack")}),
        }
        return Summary(metrics=metrics, tables=tables)

    def chosen(self) -> tuple[str, ...]:
        """Names of the tasks that are run, in RULER's order."""
        if self.tasks is not None:
            return tuple(name for name in TASKS if name in self.tasks)
        given = {name for name, key in FILE_PARAMETERS.items() if getattr(self, key)}
        return tuple(name for name in TASKS if name not in FILE_PARAMETERS or name in given)

    def _material(self, longest: int) -> Material:
        """The sources of all samples. Files are read once per process."""
        chosen = self.chosen()
        needed = any(needs_background(TASKS[name]) for name in chosen)
        background = self.words(longest) if needed else None
        words = word_list(self.word_list) if "cwe" in chosen else None
        keys = read_words(self.key_list, 10) if self.key_list else None  # enough for all tasks
        questions = {}
        for name, kind in (("qa_1", "SQuAD"), ("qa_2", "HotpotQA")):
            if name in chosen:
                file = read_questions(getattr(self, FILE_PARAMETERS[name]), kind)
                draw = Random(f"{self.seed}-{name}-questions")
                drawn = draw.sample(file.questions, len(file.questions))
                questions[name] = replace(file, questions=tuple(drawn))
        return Material(
            background=background,
            numbers=frozenset() if background is None else background.numbers,
            from_beginning=self.haystack_start == "beginning",
            words=words,
            keys=keys,
            questions=questions,
        )

    def _tasks(self, model: LanguageModel, length: int, material: Material) -> list[RulerTask]:
        """The tasks at a length, of ``THIN_TASKS`` if it is short; raises if one does not fit."""
        tasks, short = [], []
        for name in self.chosen():
            task = TASKS[name]
            needed = self._least(model, task, length, material)
            # 2 % margin: words of other samples may take a few more tokens.
            if name in THIN_TASKS and (length < 4_096 or needed > 0.98 * length):
                task = THIN_TASKS[name]
                needed = self._least(model, task, length, material)
            if needed > length:
                short.append(f"{name} {needed}")
            tasks.append(task)
        if short:
            raise ConfigError(
                f"ruler: a length of {length} tokens is too short; with this tokenizer these tasks "
                f"need at least: {', '.join(short)}. Set longer lengths or other tasks."
            )
        for task in tasks:
            _, units = self._fit(model, task, length, 0, material)
            if units == task.units(material, 0, length)[1] < length:
                unit = "documents" if task.name in FILE_PARAMETERS else "words"
                raise ConfigError(
                    f"ruler: the content of {task.name} must fill a context of {length} tokens, "
                    f"got only {units} {unit}."
                )
        return tasks

    def _least(self, model: LanguageModel, task: RulerTask, length: int, material: Material) -> int:
        """Tokens that a task needs at least, budget included: the largest of a few samples."""
        tokens = []
        for index in range(min(4, self.samples)):
            least, _ = task.units(material, index, length)
            tokens.append(self._tokens(model, self._build(task, least, length, index, material)))
        return max(tokens) + task.max_new_tokens

    def _fit(
        self, model: LanguageModel, task: RulerTask, length: int, index: int, material: Material
    ) -> tuple[Sample, int]:
        """The largest sample that fits ``length``, and its number of units."""

        def count(units: int) -> int:
            return self._tokens(model, self._build(task, units, length, index, material))

        least, most = task.units(material, index, length)
        units = most_that_fits(count, length - task.max_new_tokens, least=least, most=most)
        if units is None:
            raise ItemError(f"ruler: {task.name}, sample {index}: longer than {length} tokens.")
        return self._build(task, units, length, index, material), units

    def _tokens(self, model: LanguageModel, sample: Sample) -> int:
        return self.count(model, self.prompt(model, sample.question, sample.answer_prefix))

    def _build(
        self, task: RulerTask, units: int, length: int, index: int, material: Material
    ) -> Sample:
        seed = f"{self.seed}-{length}-{task.name}-{index}"
        return task.build(units, length, index, seed, material)


def _grid(
    rows: Sequence[Mapping[str, Any]], kind: str, lengths: Sequence[int], tasks: Sequence[str]
) -> list[list[float | None]]:
    """Mean of field ``kind`` by length and task; ``None`` if no row has it."""
    cells = [
        [[r[kind] for r in rows_with(rows, length=n, task=task) if kind in r] for task in tasks]
        for n in lengths
    ]
    return [[float(np.mean(cell)) if cell else None for cell in line] for line in cells]
