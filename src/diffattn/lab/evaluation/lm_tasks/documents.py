"""Documents of the tasks of Tables 1 and 8 in the fields of the harness's prompts: made up, or from
files with the fields of the dataset on the hub or of the original distribution."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.data import files

FIELDS: dict[str, tuple[str, ...]] = {
    "arc_challenge": ("question", "choices", "answerKey"),
    "arc_easy": ("question", "choices", "answerKey"),
    "boolq": ("passage", "question", "answer"),
    "hellaswag": ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
    "openbookqa": ("question_stem", "choices", "answerKey"),
    "piqa": ("goal", "sol1", "sol2", "label"),
    "winogrande": ("sentence", "option1", "option2", "answer"),
}
"""Task to the fields of its documents."""
TASKS = tuple(FIELDS)

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LocalDocuments:
    """The documents of one task."""

    evaluated: list[Document]
    training: list[Document] | None  # source of few-shot examples


def read_task(folder: Path, task: str, columns: Mapping[str, str] = {}) -> LocalDocuments:
    """Read ``TASK.jsonl`` (or ``TASK_test.jsonl``, ``TASK_val_5.jsonl``, ...) of a folder, and
    ``TASK_train.jsonl`` if there is one. ``columns`` maps fields (``goal``, or ``piqa.goal`` for
    one task) to their names in the files."""
    files.require_path(folder)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: must be a folder with {task}.jsonl, got a file.")
    evaluated = _find(folder, task, rf"{task}(_(test|val|valid|validation|dev)(_\d+)?)?\.jsonl")
    if evaluated is None:
        wanted = folder / f"{task}.jsonl"
        raise ConfigError(f"{wanted}: file must exist, got none.{files.near_path(wanted)}")
    training = _find(folder, task, rf"{task}_train(_\d+)?\.jsonl")
    of_task = {}
    for name, column in columns.items():
        scope, _, field = name.rpartition(".")
        if scope in ("", task) and field in FIELDS[task]:
            of_task[field] = column
    examples = None if training is None else _read(training, task, of_task)
    return LocalDocuments(_read(evaluated, task, of_task), examples)


def _find(folder: Path, task: str, pattern: str) -> Path | None:
    paths = sorted(path for path in folder.iterdir() if re.fullmatch(pattern, path.name))
    if len(paths) > 1:
        raise ConfigError(
            f"{folder}: one file must hold the documents of {task}, "
            f"got {', '.join(path.name for path in paths)}."
        )
    return paths[0] if paths else None


def _read(path: Path, task: str, columns: Mapping[str, str]) -> list[Document]:
    documents: list[Document] = []
    lines = files.require_text(path).split("\n")
    for number, record in files.json_objects(lines, str(path)):
        where = f"{path}:{number}"
        try:
            documents.append(_document(task, files.with_known_names(record, columns, where)))
        except KeyError as error:
            raise ConfigError(
                f"{where}: a document of {task} must have field {error}, got {sorted(record)}."
            ) from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {error}") from error
    if not documents:
        raise ConfigError(f"{path}: must hold one document or more, got an empty file.")
    return documents


def _document(task: str, record: Mapping[str, Any]) -> Document:
    if "choices" in FIELDS[task]:
        return _science(FIELDS[task][0], record)
    choices, no_texts = 2, ("label", "endings", "answer" if task == "boolq" else "")
    document: Document = {
        name: _text(record, name) for name in FIELDS[task] if name not in no_texts
    }
    if task == "winogrande":
        if "_" not in document["sentence"]:
            raise ValueError(f"sentence must hold a '_', got {document['sentence']!r}.")
        if document["answer"] not in ("1", "2"):
            raise ValueError(f"answer must be '1' or '2', got {document['answer']!r}.")
        return document
    if task == "hellaswag":
        document["endings"] = _texts(record, "endings")
        choices = len(document["endings"])
    # The label is a number, a text with a number, or a boolean for two choices.
    label = record["answer" if task == "boolq" and "answer" in record else "label"]
    if not isinstance(label, int | str) or not 0 <= int(label) < choices:
        raise ValueError(f"label must be from 0 to {choices - 1}, got {label!r}.")
    return document | {"label": str(int(label)) if task == "hellaswag" else int(label)}


def _science(stem: str, record: Mapping[str, Any]) -> Document:
    """ARC and OpenBookQA, which differ in the name of the question's field."""
    if isinstance(record.get("question"), Mapping):  # the original distribution
        question, listed = _text(record["question"], "stem"), record["question"]["choices"]
        texts, labels = ([_text(choice, key) for choice in listed] for key in ("text", "label"))
    else:
        question, listed = _text(record, stem), record["choices"]
        texts, labels = _texts(listed, "text"), _texts(listed, "label")
    answer = _text(record, "answerKey").strip()
    if answer not in labels or len(labels) != len(texts):
        raise ValueError(f"answerKey must be one of {labels}, got {answer!r}.")
    return {stem: question, "choices": {"text": texts, "label": labels}, "answerKey": answer}


def _text(record: Mapping[str, Any], name: str) -> str:
    if not isinstance(record[name], str):
        raise TypeError(f"{name} must be text, got {type(record[name]).__name__}.")
    return str(record[name])


def _texts(record: Mapping[str, Any], name: str) -> list[str]:
    texts = record[name]
    if not isinstance(texts, list) or len(texts) < 2 or not all(isinstance(x, str) for x in texts):
        raise TypeError(f"{name} must be a list of two texts or more, got {texts!r:.60}.")
    return texts


_PEOPLE = ("Anna", "Peter", "Maria", "Tom", "Ines", "Karl", "Ruth", "Omar")
_THINGS = {
    "bridge": "a river", "ladder": "a roof", "lamp": "the dark", "umbrella": "the rain",
    "kettle": "cold water", "needle": "a torn shirt", "shovel": "deep snow", "key": "a locked door",
}  # fmt: skip
_NUM_TRAINING = 16


def generated_documents(task: str, count: int, seed: int = 0) -> LocalDocuments:
    """Make up ``count`` documents of a task, and 16 for examples. They depend on the seed."""
    generator = random.Random(f"{task}-{seed}")
    made = [_document(task, _record(task, generator)) for _ in range(count + _NUM_TRAINING)]
    return LocalDocuments(made[:count], made[count:])


def _record(task: str, generator: random.Random) -> dict[str, Any]:
    things = generator.sample(sorted(_THINGS), 4)
    right = generator.randrange(4)
    use, place = _THINGS[things[right]], generator.randrange(2)
    first, second = generator.sample(_PEOPLE, 2)
    if "choices" in FIELDS[task]:
        return {
            FIELDS[task][0]: f"What helps against {use}?",
            "choices": {"text": [f"a {thing}" for thing in things], "label": list("ABCD")},
            "answerKey": "ABCD"[right],
        }
    if task == "boolq":
        asked = things[right] if place else things[right - 1]
        passage = f"{first} had a {things[right]}, and {second} knew {use} well."
        return {"passage": passage, "question": f"did {first} have a {asked}", "label": place}
    if task == "hellaswag":
        return {
            "activity_label": "Housework",
            "ctx_a": f"{first} has to do with {use}.",
            "ctx_b": f"{first.lower()} then",
            "endings": [f"takes a {thing} and goes on." for thing in things],
            "label": str(right),
        }
    if task == "piqa":
        ways = [f"Take a {things[right]}.", f"Take a {things[right - 1]}."]
        goal = {"goal": f"do with {use}", "label": place}
        return goal | {"sol1": ways[place], "sol2": ways[1 - place]}
    sentence = f"{first} gave {second} the {things[right]} because _ had to do with {use}."
    options = [second, first] if place == 0 else [first, second]
    answers = {"option1": options[0], "option2": options[1], "answer": "12"[place]}
    return {"sentence": sentence} | answers
