"""Rows come from files in their original columns; what is wrong is named."""

import json
import random
import sys
import types
import zipfile

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.hallucination.data import TASKS, load_examples
from diffattn.lab.evaluation.hallucination.hallucination import cut
from diffattn.lab.inference.network_reader import ItemError

LONG_BENCH = {
    "input": "who?", "context": "A text {with} braces.", "answers": ["x", "y"], "length": 3,
    "dataset": "d", "language": "en", "all_classes": None, "_id": "1",
}  # fmt: skip


def write(path, *rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("dataset", "row", "expected"),
    [
        ("xsum", {"document": "d", "summary": "s", "id": "7"}, ("d", "", ("s",))),
        ("cnn_dm", {"article": "a", "highlights": "h", "id": "7"}, ("a", "", ("h",))),
        ("cnn_dm", {"document": "d", "summary": "s"}, ("d", "", ("s",))),
        ("multi_news", LONG_BENCH, ("A text {with} braces.", "", ("x", "y"))),
        ("multi_news", {"document": "d", "summary": "s"}, ("d", "", ("s",))),
        ("qasper", LONG_BENCH, ("A text {with} braces.", "who?", ("x", "y"))),
        ("2wikimqa", LONG_BENCH, ("A text {with} braces.", "who?", ("x", "y"))),
    ],
)
def test_original_columns(dataset, row, expected, tmp_path):
    write(tmp_path / f"{dataset}.jsonl", row, row)
    for data in (tmp_path, tmp_path / f"{dataset}.jsonl"):
        first, second = load_examples(TASKS[dataset], str(data), 100, 0)
        assert (first.document, first.question, first.references) == expected
        assert first.id.split("-")[0] == "1"
        assert second.id.split("-") == ["2", first.id.split("-")[1]]
    assert len(load_examples(TASKS[dataset], str(tmp_path), 1, 0)) == 1


def test_a_prompt_holds_document_and_question_as_they_are():
    prompt = TASKS["hotpotqa"].prompt("a {question} b", "c {context}?")
    assert "passages.\na {question} b\n\nAnswer" in prompt
    assert prompt.endswith("Question: c {context}?\nAnswer:")
    for task in TASKS.values():
        assert task.prompt("d", "q").endswith(task.cue)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "d", "summary": "s"}\n', r"xsum.jsonl:1: a row of xsum must have the columns "
         r"document, summary, got summary, text"),
        ('{"document": 3, "summary": "s"}\n', r"xsum.jsonl:1: column 'document' must be a text"),
        ('{"document": "d", "summary": []}\n', r"column 'summary' must be a text or a list"),
        ('{"document": "d", "summary": [1]}\n', r"column 'summary' must be a text or a list"),
        ("not json\n", r"xsum.jsonl:1: must be a JSON object, got 'not json'"),
        ("\n", r"xsum.jsonl: must hold one row or more, got none"),
    ],
)  # fmt: skip
def test_wrong_files(content, message, tmp_path):
    (tmp_path / "xsum.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_examples(TASKS["xsum"], str(tmp_path), 100, 0)


def test_the_hub(monkeypatch):
    asked = []

    def load_dataset(name, config, *, split, streaming):
        asked.append((name, config, split, streaming))
        if name == "gone":
            raise ValueError("no such data set.\nmore")
        return iter([{"article": "a", "highlights": "h"}])

    module = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert load_examples(TASKS["cnn_dm"], "hub", 5, 0)[0].document == "a"
    assert load_examples(TASKS["cnn_dm"], "hub:me/copy:c:train", 5, 0)[0].references == ("h",)
    assert asked == [
        ("abisee/cnn_dailymail", "3.0.0", "test", True), ("me/copy", "c", "train", True),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"gone: must be a dataset that can be opened, got: no"):
        load_examples(TASKS["cnn_dm"], "hub:gone", 5, 0)


def test_the_archive_of_long_bench(monkeypatch, tmp_path):
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data/qasper.jsonl", json.dumps(LONG_BENCH) + "\n")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: str(path))
    assert load_examples(TASKS["qasper"], "hub", 5, 0)[0].question == "who?"
    with pytest.raises(ConfigError, match=r"LongBench: must be a dataset that can be opened"):
        load_examples(TASKS["hotpotqa"], "hub", 5, 0)


def test_generated_rows_are_reproducible_and_their_answers_stand_in_the_text():
    for task in TASKS.values():
        first, again = (load_examples(task, "generated", 4, 9) for _ in range(2))
        assert first == again
        assert first != load_examples(task, "generated", 4, 10)
        for one in first:
            assert one.references[0] in one.document


@pytest.fixture(scope="module")
def counting(build):
    return build("softmax", max_length=10_000)


def word_by_word(model, document, render, limit):
    """The definition: drop the last word until the prompt fits."""
    while len(model.encode_prompt(render(document))) > limit:
        document = document.rpartition(" ")[0]
    return document


@pytest.mark.parametrize("seed", range(30))
def test_bisection_equals_dropping_word_by_word(counting, text, seed):
    generator = random.Random(seed)
    document = text[: generator.randrange(50, 900)].replace(". ", generator.choice([". ", ".\n"]))

    def render(part):
        return TASKS["xsum"].prompt(part, "")

    bare = len(counting.encode_prompt(render("")))
    limit = bare + generator.randrange(0, 200)
    head, tail = cut(counting, document, render, limit=limit, where="end")
    assert tail == 0
    assert document[:head] == word_by_word(counting, document, render, limit)


@pytest.mark.parametrize("room", [0, 1, 7, 50, 199])
def test_the_middle_goes_and_the_ends_stay(counting, text, room):
    def render(part):
        return TASKS["hotpotqa"].prompt(part, "what is the value?")

    limit = len(counting.encode_prompt(render(""))) + room
    head, tail = cut(counting, text, render, limit=limit, where="middle")
    kept = text[:head] + text[len(text) - tail :]
    assert len(counting.encode_prompt(render(kept))) <= limit
    sizes = [len(counting.encode(part)) for part in (text[:head], text[len(text) - tail :])]
    longest_word = max(len(counting.encode(word)) for word in text.split(" ")) + 1
    assert sizes[0] <= room // 2
    assert sizes[0] >= room // 2 - longest_word
    assert sum(sizes) >= room - 3 * longest_word


def test_a_document_that_fits_is_whole_and_a_prompt_that_does_not_is_refused(counting):
    for where in ("end", "middle"):
        assert cut(counting, "one two", str, limit=50, where=where) == (7, 0)
        with pytest.raises(ItemError, match="must fit 3 tokens"):
            cut(counting, "one two three", "a long question {}".format, limit=3, where=where)


def test_columns_can_be_called_otherwise(tmp_path):
    row = {"passage": "d", "who": "q", "gold": ["a"], "answers": "unused"}
    path = write(tmp_path / "rows.jsonl", row)
    columns = {"document": "passage", "question": "who", "references": "gold"}
    (example,) = load_examples(TASKS["qasper"], path, 5, 0, columns)
    assert (example.document, example.question, example.references) == ("d", "q", ("a",))
    (summary,) = load_examples(TASKS["xsum"], path, 5, 0, columns)
    assert (summary.document, summary.question, summary.references) == ("d", "", ("a",))
    with pytest.raises(ConfigError, match=r"must have the column 'whom' .* Did you mean 'who'\?"):
        load_examples(TASKS["qasper"], path, 5, 0, columns | {"question": "whom"})
