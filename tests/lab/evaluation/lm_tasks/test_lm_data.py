"""Local files of the tasks: two forms of a document, and what is refused."""

import json

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.lm_tasks.documents import TASKS, generated_documents, read_task
from lm_documents import documents, write_task


def read_one(folder, task, *records):
    text = "".join(json.dumps(record) + "\n" for record in records)
    (folder / f"{task}.jsonl").write_text(text, encoding="utf-8")
    return read_task(folder, task).evaluated


@pytest.mark.parametrize("task", TASKS)
def test_fields_of_the_hub(task, tmp_path):
    written = write_task(tmp_path / "data", task, 7, num_training=5)
    found = read_task(tmp_path / "data", task)
    kept = [
        {key: value for key, value in one.items() if key != "id"}
        for one in documents(task, 7, task)
    ]
    assert found.evaluated == kept
    assert len(written) == 7
    assert len(found.training) == 5


@pytest.mark.parametrize("task", ["arc_easy", "openbookqa"])
def test_questions_as_first_distributed(task, tmp_path):
    choices = [{"text": "one", "label": "A"}, {"text": "two", "label": "B"}]
    record = {"id": "1", "question": {"stem": "why?", "choices": choices}, "answerKey": "B"}
    stem = "question" if task == "arc_easy" else "question_stem"
    assert read_one(tmp_path, task, record) == [
        {stem: "why?", "choices": {"text": ["one", "two"], "label": ["A", "B"]}, "answerKey": "B"}
    ]


@pytest.mark.parametrize("name", ["label", "answer"])
def test_boolq_with_truths(name, tmp_path):
    records = [{"passage": "p", "question": "q", name: truth} for truth in (True, False)]
    assert [one["label"] for one in read_one(tmp_path, "boolq", *records)] == [1, 0]


GAP = {"sentence": "_", "option1": "a", "option2": "b", "answer": "1"}
ARC = {"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"}


@pytest.mark.parametrize(
    ("task", "record", "message"),
    [
        ("arc_easy", {"question": "q"}, r"arc_easy.jsonl:1: .* must have field 'choices', got"),
        ("arc_easy", ARC | {"answerKey": ""}, "answerKey must be one of"),
        ("arc_easy", ARC | {"choices": {"text": ["a"], "label": ["A"]}}, "two texts or more"),
        ("boolq", {"passage": "p", "question": "q", "label": 2}, "label must be from 0 to 1"),
        ("winogrande", GAP | {"sentence": "s"}, "must hold a '_'"),
        ("winogrande", GAP | {"answer": ""}, "answer must be"),
        ("piqa", [1], "must be a JSON object, got list"),
    ],
)
def test_a_wrong_line_is_named(task, record, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        read_one(tmp_path, task, record)


def test_wrong_files(tmp_path):
    with pytest.raises(ConfigError, match=r"piqa\.jsonl: file must exist"):
        read_task(tmp_path, "piqa")
    file = tmp_path / "piqa.jsonl"
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="must be a folder"):
        read_task(file, "piqa")
    with pytest.raises(ConfigError, match="one document or more"):
        read_task(tmp_path, "piqa")
    (tmp_path / "piqa_val_10.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="one file must hold"):
        read_task(tmp_path, "piqa")


def test_fields_can_be_called_otherwise(tmp_path):
    def write(name, *records):
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))

    write("piqa.jsonl", {"aim": "g", "sol1": "a", "sol2": "b", "right": 1})
    write("winogrande.jsonl", {"sentence": "a _", "option1": "x", "option2": "y", "right": "2"})
    columns = {"goal": "aim", "piqa.label": "right", "winogrande.answer": "right"}
    assert read_task(tmp_path, "piqa", columns).evaluated == [
        {"goal": "g", "sol1": "a", "sol2": "b", "label": 1}
    ]
    assert read_task(tmp_path, "winogrande", columns).evaluated[0]["answer"] == "2"
    with pytest.raises(ConfigError, match=r"piqa.jsonl:1: must have the column 'aims' that 'col"):
        read_task(tmp_path, "piqa", columns | {"goal": "aims"})


@pytest.mark.parametrize("task", TASKS)
def test_made_up_documents_of_every_task(task):
    made = generated_documents(task, 40)
    assert (len(made.evaluated), len(made.training)) == (40, 16)
    assert made == generated_documents(task, 40)
    assert made != generated_documents(task, 40, seed=1)
    assert generated_documents(task, 4).evaluated == made.evaluated[:4]
