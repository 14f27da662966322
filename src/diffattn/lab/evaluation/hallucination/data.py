"""The datasets of contextual hallucination: prompts, and documents of files, the hub or made up."""

import hashlib
import itertools
import os
import random
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, did_you_mean
from diffattn.lab.data import files
from diffattn.lab.data.corpora import hub_rows, unreadable

_LOOKBACK_STOP = ("#Document#:", "#Question#:", "#Article#:", "Q:", "\\end{code}")
_PASSAGES = (
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words."
)
_ARTICLE = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question "
    'cannot be answered based on the information in the article, write "unanswerable". If the '
    'question is a yes/no question, answer "yes", "no", or "unanswerable". Do not provide any '
    "explanation."
)
CONTEXT_TOKENS = 4_096
"""Context length of the paper's models, for prompt and answer of the LongBench tasks together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Prompt, limits and columns of one dataset."""

    name: str
    kind: str  # ``"summary"`` or ``"answer"``
    before: str  # prompt before the document
    after: str  # prompt after the document; ``{question}`` stands for the question
    cue: str  # the end of the prompt, before the answer; lookback ratios count it as new
    max_new_tokens: int
    prompt_tokens: int  # most tokens of the prompt, BOS included
    cut: str  # the part that is cut from a long document: its ``"end"`` or its ``"middle"``
    columns: tuple[dict[str, str], ...]
    """Layouts that are accepted, the original one first: ``document``, ``references`` (a text or a
    list of accepted answers), and for answers ``question``, to their columns in a file."""
    stop: tuple[str, ...] = ()
    hub: str | None = None  # ``NAME[:CONFIG[:SPLIT]]``; ``None``: in LongBench's archive

    def prompt(self, document: str, question: str) -> str:
        """The prompt for a document and a question. Braces in a document stay as they are."""
        return self.before + document + self.after.replace("{question}", question)


_ANSWER = {"document": "context", "question": "input", "references": "answers"}
_SUMMARY = {"document": "document", "references": "summary"}


def _lookback(name: str, instruction: str, title: str, columns: tuple[dict[str, str], ...],
              hub: str) -> Task:  # fmt: skip
    return Task(
        name=name, kind="summary", before=f"{instruction}\n\n#{title}#: ", after="\n#Summary#:",
        cue="\n#Summary#:", max_new_tokens=256, prompt_tokens=2_033, cut="end", columns=columns,
        stop=_LOOKBACK_STOP, hub=hub,
    )  # fmt: skip


def _long_bench(name: str, kind: str, before: str, after: str, max_new_tokens: int) -> Task:
    summary = {"document": "context", "references": "answers"}
    columns = (_ANSWER,) if kind == "answer" else (summary, _SUMMARY)
    return Task(
        name=name, kind=kind, before=before, after=after, cue=after[after.rindex("\n") :],
        max_new_tokens=max_new_tokens, prompt_tokens=CONTEXT_TOKENS - max_new_tokens, cut="middle",
        columns=columns,
    )  # fmt: skip


def _passages(name: str) -> Task:
    return _long_bench(
        name,
        "answer",
        f"{_PASSAGES}\n\nThe following are given passages.\n",
        f"\n\n{_PASSAGES}\n\nQuestion: {{question}}\nAnswer:",
        32,
    )


_ALL = (
    _lookback(
        "xsum",
        "Generate a summary comprising of 1 sentence for the given article.",
        "Article",
        (_SUMMARY,),
        "EdinburghNLP/xsum",
    ),
    _lookback(
        "cnn_dm",
        "Generate a summary based on the information in the document.",
        "Document",
        ({"document": "article", "references": "highlights"}, _SUMMARY),
        "abisee/cnn_dailymail:3.0.0",
    ),
    _long_bench(
        "multi_news",
        "summary",
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n",
        "\n\nNow, write a one-page summary of all the news.\n\nSummary:",
        512,
    ),
    _long_bench(
        "qasper",
        "answer",
        f"You are given a scientific article and a question. Answer the question {_ARTICLE}"
        "\n\nArticle: ",
        f"\n\n Answer the question based on the above article {_ARTICLE}"
        "\n\nQuestion: {question}\n\nAnswer:",
        128,
    ),
    _passages("hotpotqa"),
    _passages("2wikimqa"),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}


_LONG_BENCH = "zai-org/LongBench"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One document to summarise or to ask about."""

    id: str  # row number and a hash of document and question: equal ids mean equal texts
    document: str
    question: str
    references: tuple[str, ...]


def load_examples(
    task: Task, data: str, samples: int, seed: int, columns: Mapping[str, str] = {}
) -> list[Example]:
    """The first ``samples`` rows of a dataset, in file order.

    ``data`` is a ``.jsonl`` file in a layout of the task (``task.columns``), a folder that holds
    ``<task>.jsonl``, ``"hub"`` for the published dataset, ``"hub:NAME[:CONFIG[:SPLIT]]"`` for
    another copy, or ``"generated"`` for made-up articles, which depend on the seed. ``columns``
    maps ``document``, ``question`` and ``references`` to their names in the rows.
    """
    name, rows = _rows(task, data, samples, seed)
    examples: list[Example] = []
    for number, row in enumerate(itertools.islice(rows, samples), start=1):
        row = files.normalise_line_ends(row)  # for the hub; file readers do this themselves
        examples.append(_example(task, row, number, f"{name}:{number}", columns))
    if not examples:
        raise ConfigError(f"{name}: must hold one row or more, got none.")
    return examples


def _rows(
    task: Task, data: str, samples: int, seed: int
) -> tuple[str, Iterator[Mapping[str, Any]]]:
    """A name of the source for messages, and its rows."""
    if data == "generated":
        return data, iter(generated_rows(task, samples, seed))
    if data == "hub" and task.hub is None:
        return _LONG_BENCH, _archive_rows(task)
    if data == "hub" or data.startswith("hub:"):
        address = f"hub:{task.hub}" if data == "hub" else data
        name, config, split = [*address.split(":", 3)[1:], "", ""][:3]
        where, split = f"{name}:", split or "test"
        return address, hub_rows(name, config or None, where=where, split=split, streaming=True)
    path = Path(os.path.expanduser(data))
    if path.is_dir():
        path = path / f"{task.name}.jsonl"
    return str(path), _json_rows(files.require_text(path), str(path))


def _json_rows(text: str, name: str) -> Iterator[Mapping[str, Any]]:
    return (row for _, row in files.json_objects(text.split("\n"), name))


def _archive_rows(task: Task) -> Iterator[Mapping[str, Any]]:
    """Rows of a task of LongBench, which is one archive of JSON lines on the hub."""
    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(_LONG_BENCH, "data.zip", repo_type="dataset")
        with zipfile.ZipFile(path) as archive:
            text = archive.read(f"data/{task.name}.jsonl").decode()
    except (OSError, ValueError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
        raise unreadable(f"{_LONG_BENCH}:", error) from error
    yield from _json_rows(files.normalise_line_ends(text), f"{_LONG_BENCH}/{task.name}.jsonl")


def _example(
    task: Task, row: Mapping[str, Any], number: int, where: str, named: Mapping[str, str]
) -> Example:
    if named:  # copy the named columns to the names of the first layout
        layout = task.columns[0]  # that of a summary has no question
        known = {layout[field]: column for field, column in named.items() if field in layout}
        row = files.with_known_names(row, known, where)
    columns = _columns(task, row, where)
    document = _text(row, columns["document"], where)
    question = _text(row, columns["question"], where) if "question" in columns else ""
    value = row[columns["references"]]
    references = [value] if isinstance(value, str) else value
    is_list = isinstance(references, list | tuple) and len(references) > 0
    if not is_list or not all(isinstance(text, str) for text in references):
        raise ConfigError(
            f"{where}: column {columns['references']!r} must be a text or a list of texts, "
            f"got {str(value)[:40]!r}."
        )
    digest = hashlib.sha256(f"{document}\0{question}".encode("utf-8", "surrogatepass"))
    return Example(
        id=f"{number}-{digest.hexdigest()[:8]}",
        document=document,
        question=question,
        references=tuple(references),
    )


def _columns(task: Task, row: Mapping[str, Any], where: str) -> Mapping[str, str]:
    for columns in task.columns:
        if all(name in row for name in columns.values()):
            return columns
    missing = [name for name in task.columns[0].values() if name not in row]
    layouts = " or ".join(", ".join(columns.values()) for columns in task.columns)
    raise ConfigError(
        f"{where}: a row of {task.name} must have the columns {layouts}, got "
        f"{', '.join(sorted(map(str, row))) or 'none'}.{did_you_mean(missing[0], map(str, row))}"
    )


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value = row[column]
    if not isinstance(value, str):
        raise ConfigError(f"{where}: column {column!r} must be a text, got {type(value).__name__}.")
    return value


_TOWNS = ("Marlow", "Esker", "Tidewell", "Norvale", "Quill", "Hathern", "Lindow", "Overby")
_FIRST = ("Anna", "Peter", "Maria", "Tom", "Ines", "Karl", "Ruth", "Omar")
_LAST = ("Keller", "Brandt", "Okafor", "Silva", "Novak", "Hughes", "Tanaka", "Moreau")
_BUILDINGS = ("bridge", "library", "school", "station", "theatre", "harbour", "museum", "market")
_ASIDES = (
    "Many people came to see the {building} on the first morning.",
    "The old road to {town} had been closed for {number} days.",
    "The mayor said that the work would bring {number} visitors a year.",
    "A letter from {year} had asked for the same thing.",
    "It was a long winter, and the river stood high in {town}.",
    "Some of the older people remembered the plans of {year}.",
)


def generated_rows(task: Task, count: int, seed: int) -> list[dict[str, Any]]:
    """``count`` made-up rows in the first layout of a task."""
    columns, rows = task.columns[0], []
    for i in range(count):
        generator = random.Random(f"{seed}-{task.name}-{i}")
        document, summary, question, answer = _article(generator)
        reference = summary if task.kind == "summary" else answer
        references = [reference] if columns["references"] == "answers" else reference
        values = {"document": document, "question": question, "references": references}
        rows.append({column: values[field] for field, column in columns.items()})
    return rows


def _article(generator: random.Random) -> tuple[str, str, str, str]:
    """Document, summary, question and answer."""
    town, building = generator.choice(_TOWNS), generator.choice(_BUILDINGS)
    person = f"{generator.choice(_FIRST)} {generator.choice(_LAST)}"
    year, cost = generator.randrange(1850, 2000), generator.randrange(10, 990) * 1000
    summary = f"In {year} the town of {town} opened a {building} built by {person}."
    facts = [summary, f"The {building} was paid for by the town and cost {cost:,} pounds."]
    for _ in range(generator.randint(6, 40)):
        aside = generator.choice(_ASIDES)
        then, number = generator.randrange(1800, 1850), generator.randrange(2, 900)
        facts.append(aside.format(building=building, town=town, year=then, number=number))
    return " ".join(facts), summary, f"Who built the {building} of {town}?", person
