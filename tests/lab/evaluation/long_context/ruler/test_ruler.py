"""RULER on models: lengths, scores, summary, and what is refused before the first item."""

import json
from itertools import product

import pytest
from test_ruler_tasks import hotpot_value, squad_value

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.ruler.ruler import TASKS, THIN_TASKS, Ruler
from diffattn.lab.evaluation.metrics import NAMED
from evaluation_folders import evaluated
from scripted_model import completing


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    """Two files in the original formats, some hundred documents each."""
    folder = tmp_path_factory.mktemp("questions")
    (folder / "squad.json").write_text(json.dumps(squad_value(120)))
    (folder / "hotpotqa.json").write_text(json.dumps(hotpot_value(100)))
    return {"squad": str(folder / "squad.json"), "hotpotqa": str(folder / "hotpotqa.json")}


class Remembering(Ruler):
    """Keeps every sample that it builds, by its prompt."""

    built = {}

    def _build(self, *args):
        sample = super()._build(*args)
        self.built[sample.question + sample.answer_prefix] = sample
        return sample


def answering(model, answer):
    """A model that writes what ``answer(sample)`` says."""
    return completing(model, lambda text, *_: answer(Remembering.built[text]))


def test_all_thirteen_tasks_fill_their_length(long_model, haystack, questions, tmp_path):
    model = answering(long_model, lambda sample: f" {sample.answer.upper()}")
    protocol = Remembering(
        lengths=(3500, 8000), samples=1, haystack=haystack, logprob=False, **questions
    )
    result, rows = evaluated(model, protocol, tmp_path / "out")
    assert (result.num_items, result.num_failed) == (2 * 13, 0)
    # Whatever is asked for, the right answer scores 1.
    scores = [m for m in result.headline() if not m.name.startswith("guess")]
    assert [m.value for m in scores] == [1.0, 1.0, 8000.0]
    assert scores[0].name == "mean_of_13_tasks"
    assert_guesses(result)
    assert result.tables["left_out"] == {}
    material = protocol._material(8000)
    for row in rows:
        task, length = TASKS[row["task"]], row["length"]
        if row["task"] == "cwe":
            assert row["repeats"] == ([6, 1] if length < 4096 else [30, 3])
            task = THIN_TASKS["cwe"] if length < 4096 else task
        assert row["prompt_tokens"] + task.max_new_tokens <= length
        more = protocol._tokens(
            long_model, protocol._build(task, row["units"] + 1, length, row["index"], material)
        )
        assert more + task.max_new_tokens > length  # not one unit more would fit
        assert (row["haystack"] is not None) == (
            row["task"] in ("niah_single_2", "niah_single_3", "niah_multikey_1",
                            "niah_multivalue", "niah_multiquery")
        )  # fmt: skip


def assert_guesses(result):
    """What copying would score stands beside every score, of lists also in the printed table."""
    printed = {
        (m.where["task"], m.name, m.where["length"]): m.value
        for m in result.headline()
        if "guess" in m.name
    }
    assert set(printed) == set(product(("cwe", "fwe"), ("guess", NAMED), (3500, 8000)))
    table = result.tables["guesses"]
    for task in ("cwe", "fwe"):
        asked, most = (printed[task, name, 8000] for name in ("guess", NAMED))
        assert table["guess"][1][table["tasks"].index(task)] == pytest.approx(asked)
        assert 0 < asked <= most <= 1
    for task in ("niah_single_1", "niah_single_2", "niah_single_3", "vt"):
        assert table["guess"][0][table["tasks"].index(task)] is None  # all values are asked for
    for kind in ("guess", NAMED):  # one of four, and the right one alone was named
        assert table[kind][0][table["tasks"].index("niah_multikey_1")] == 0.25
    assert 0 < table["guess"][0][table["tasks"].index("qa_1")] < 0.5
    assert len(result.tables["words_sha256"]) == 1


def test_a_question_at_several_lengths_is_one_cluster(long_model, questions):
    protocol = Ruler(lengths=(2000, 3500), tasks=("qa_1", "vt"), samples=2, **questions)
    clusters = {item.id: item.cluster for batch in protocol.batches(long_model) for item in batch}
    assert clusters == {
        **{f"{n}-qa_1-{i}": f"qa_1-{i}" for n in (2000, 3500) for i in (0, 1)},
        **{f"{n}-vt-{i}": None for n in (2000, 3500) for i in (0, 1)},
    }


def test_the_summary_weighs_tasks_equally():
    def rows(length, task, scores):
        return [{"length": length, "task": task, "scores": {"score": s}} for s in scores]

    found = Ruler().summarise(
        [
            *rows(4096, "vt", [1.0] * 9),
            *rows(4096, "cwe", [0.8]),
            *rows(8192, "vt", [0.5, 1.0]),
            *rows(8192, "cwe", [0.9, 0.9]),
            *rows(16384, "vt", [1.0, 1.0]),
        ]
    )
    means = {m.where["length"]: (m.name, m.value) for m in found.metrics if "mean" in m.name}
    assert means[4096] == ("mean_of_2_tasks", pytest.approx(0.9))
    assert means[8192] == ("mean_of_2_tasks", pytest.approx(0.825))
    assert means[16384] == ("mean_of_1_tasks", 1.0)  # another mean, under another name
    assert found.metrics[-1].value == 4096.0  # a length without all tasks cannot be effective
    assert found.tables["threshold"] == 0.856
    assert found.tables["scores"]["score"][2] == [1.0, None]
    no_file = {
        f"qa_{i}": f"no file was given ({name})" for i, name in ((1, "squad"), (2, "hotpotqa"))
    }
    assert found.tables["left_out"] == no_file
    left_out = Ruler(tasks=("vt",)).summarise(rows(4096, "vt", [1.0])).tables["left_out"]
    assert left_out == dict.fromkeys([name for name in TASKS if name != "vt"], "not asked for")


def refused(protocol, model, message):
    with pytest.raises(ConfigError, match=message) as caught:
        protocol.batches(model)
    assert "\n" not in str(caught.value)


def test_a_length_too_short_names_the_least(long_model, haystack):
    protocol = Ruler(lengths=(300,), tasks=("niah_single_1", "vt"), haystack=haystack)
    with pytest.raises(ConfigError, match=r"too short; with this tokenizer these tasks") as caught:
        protocol.batches(long_model)
    least = {name: int(str(caught.value).split(f"{name} ")[1].split(",")[0].split(".")[0])
             for name in ("niah_single_1", "vt")}  # fmt: skip
    enough = Ruler(lengths=(max(least.values()),), tasks=tuple(least), haystack=haystack, samples=4)
    assert enough.batches(long_model)
    assert min(least.values()) > 300


@pytest.mark.parametrize("parameter", ["squad", "hotpotqa"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "file or folder must exist"),
        ("{", "must be JSON"),
        ("[1, 2]", "must be a (SQuAD|HotpotQA) file"),
        ('{"data": []}', "must (hold SQuAD questions|be a HotpotQA file)"),
        ("[]", "must (be a SQuAD file|hold HotpotQA questions)"),
    ],
)
def test_missing_and_malformed_question_files(
    parameter, content, message, long_model, tmp_path, haystack
):
    path = tmp_path / "questions.json"
    if content is not None:
        path.write_text(content)
    task = {"squad": "qa_1", "hotpotqa": "qa_2"}[parameter]
    protocol = Ruler(tasks=(task,), haystack=haystack, samples=1, **{parameter: str(path)})
    refused(protocol, long_model, rf"questions.json: .*{message}")


def test_too_few_questions_documents_or_words(long_model, haystack, tmp_path):
    asked = [{"question": "Q?", "answers": [{"text": "A"}]}] * 3
    squad = {"data": [{"paragraphs": [{"context": "A.", "qas": asked}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    many = Ruler(tasks=("qa_1",), samples=1000, squad=str(tmp_path / "squad.json"))
    refused(many, long_model, r"file of qa_1 must hold samples=1000 questions, got 3\. Set fewer")
    (tmp_path / "one.json").write_text(
        json.dumps([{"question": "Q?", "answer": "A", "context": [["T", ["A."]]]}])
    )
    single = Ruler(tasks=("qa_2",), samples=1, lengths=(4096,), hotpotqa=str(tmp_path / "one.json"))
    refused(single, long_model, r"must fill a context of 4096 tokens, got only 1 documents")
    words = tmp_path / "words.txt"
    words.write_text("\n".join(f"word{i}" for i in range(80)))
    few = Ruler(tasks=("cwe",), samples=1, lengths=(4096,), word_list=str(words))
    assert few.batches(long_model)  # 80 words repeated 3 to 30 times fill it
    longer = Ruler(tasks=("cwe",), samples=1, lengths=(3500,), word_list=str(words))
    refused(longer, long_model, r"must fill a context of 3500 tokens, got only 60 words")
    words = tmp_path / "phrases.txt"
    words.write_text("one\ntwo words\n")
    refused(Ruler(tasks=("cwe",), samples=1, word_list=str(words)), long_model, "one word per line")
    keyed = Ruler(tasks=("niah_single_1",), samples=1, haystack=haystack, key_list=str(words))
    refused(keyed, long_model, r"phrases\.txt: must hold one word per line")


def test_chat_uses_the_template(long_model, haystack, monkeypatch):
    protocol = Ruler(tasks=("niah_single_1",), samples=1, chat=True, haystack=haystack)
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    monkeypatch.setattr(long_model.tokenizer, "chat_template", template, raising=False)
    sample, _ = protocol._fit(long_model, TASKS["niah_single_1"], 2048, 0, protocol._material(2048))
    text = protocol.prompt(long_model, sample.question, sample.answer_prefix)
    assert text.startswith("[user]A special magic number")
    assert text.endswith("provided text?[assistant]" + sample.answer_prefix.strip())
    assert protocol.batches(long_model)
