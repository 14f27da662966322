"""An evaluation can be interrupted, continued and compared; a bad item takes no other down."""

import copy

import pytest

from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.files.io import read_jsonl
from diffattn.lab.evaluation.catalog import ProtocolFacts
from diffattn.lab.evaluation.judge.interface import JudgeFailure
from diffattn.lab.evaluation.protocol import Item, Part, Protocol, Summary, parts
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.inference.network_reader import ItemError, ModelError
from diffattn.lab.records.evaluations import EvalResult, Metric


class Counting(Protocol):
    """Right on even numbers; refuses those in ``bad``."""

    name = "counting"
    facts = ProtocolFacts(path="", version=1, summary="", source="none")
    summary = "counts"

    size: int = 6
    bad: tuple[int, ...] = ()

    def batches(self, model):
        if self.size < 1:
            raise ConfigError("counting: size must be 1 or more.")
        items = [Item(id=str(i), payload=i, cluster=str(i // 2)) for i in range(self.size)]
        return [items[i : i + 3] for i in range(0, self.size, 3)]

    def ask(self, model, items):
        for item in items:
            if item.payload in self.bad:
                raise ItemError(f"item {item.id} is bad")
        return [{"scores": {"right": float(item.payload % 2 == 0)}} for item in items]

    def summarise(self, rows):
        value = sum(row["scores"]["right"] for row in rows) / len(rows)
        return Summary(metrics=[Metric(name="right", value=value, n=len(rows), headline=True)])


def run(model, folder, **parameters):
    return evaluate(model, Part(variant="counting", protocol=Counting(**parameters)), folder)


def test_what_all_failed_is_asked_again(models, tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(Counting, "ask", lambda *ignored: 1 / 0)
        with pytest.raises(DiffAttnError, match="ZeroDivisionError"):
            run(models["diff"], tmp_path / "counting")
    result = run(models["diff"], tmp_path / "counting")
    assert (result.num_items, result.num_failed) == (6, 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "half of a pair: \ud83d"])
def test_an_answer_that_no_file_can_hold_is_a_failed_item(models, tmp_path, monkeypatch, bad):
    original = Counting.ask

    def ask(self, model, items):
        rows = original(self, model, items)
        return [r | {"told": bad if i.id == "4" else 0} for r, i in zip(rows, items, strict=True)]

    monkeypatch.setattr(Counting, "ask", ask)
    result = run(models["diff"], tmp_path / "a")
    assert (result.num_items, result.num_failed) == (6, 1)
    error = read_jsonl(tmp_path / "a" / "items.jsonl")[4]["error"]
    assert error.startswith("ItemError: no file can hold the answer: ")


def test_failures_that_may_pass_are_asked_again(models, tmp_path, monkeypatch):
    """Of a finished part: one item had no memory, one had no reply, one is bad by itself."""
    original, asked = Counting.ask, []
    reasons = {"2": RuntimeError("CUDA out of memory"), "4": JudgeFailure("no reply")}

    def ask(self, model, items):
        asked.extend(item.id for item in items)
        for item in items:
            if item.id in reasons:
                raise reasons[item.id]
        return original(self, model, items)

    monkeypatch.setattr(Counting, "ask", ask)
    part, said = Part(variant="counting", protocol=Counting(bad=(1,))), []
    first = evaluate(models["diff"], part, tmp_path / "a")
    assert (first.num_items, first.num_failed) == (6, 3)
    finished = EvalResult.read(tmp_path / "a")
    reasons["2"] = ModelError("no server")
    with pytest.raises(ModelError):
        evaluate(models["diff"], part, tmp_path / "a")
    assert len(finished.read_items(tmp_path / "a")) == 6  # nothing was answered: it still stands
    del reasons["2"]
    reasons["4"] = ModelError("no server")
    with pytest.raises(ModelError):
        evaluate(models["diff"], part, tmp_path / "a")
    assert not (tmp_path / "a" / "result.json").exists()  # not of these rows any more
    reasons["4"] = JudgeFailure("no reply")
    second = evaluate(models["diff"], part, tmp_path / "a", on_message=said.append)
    assert second.num_failed == 2
    assert said == ["Items that failed are asked again: 1, first: JudgeFailure: no reply"]
    reasons.clear()
    asked.clear()
    third = evaluate(models["diff"], part, tmp_path / "a")
    assert (third.num_items, third.num_failed) == (6, 1)
    assert asked == ["3", "4", "5"]
    rows = read_jsonl(tmp_path / "a" / "items.jsonl")
    assert [row["id"] for row in rows if "error" in row] == ["1"]
    assert [row["id"] for row in rows] == list("012345")
    assert (evaluate(models["diff"], part, tmp_path / "a"), asked[3:]) == (third, [])


def test_a_finished_part_is_returned_where_its_data_are_gone(models, tmp_path, monkeypatch):
    part, said = Part(variant="counting", protocol=Counting()), []
    finished = evaluate(models["diff"], part, tmp_path / "a")

    def gone(self, model):
        raise ConfigError("corpus.txt: file must exist, got none.")

    monkeypatch.setattr(Counting, "batches", gone)
    assert evaluate(models["diff"], part, tmp_path / "a", on_message=said.append) == finished
    assert said == [
        "Whether its data are the same was not checked: corpus.txt: file must exist, got none."
    ]


def test_an_interrupted_evaluation_continues_at_the_next_item(models, tmp_path, monkeypatch):
    asked = []
    original = Counting.ask

    def ask(self, model, items):
        asked.extend(item.id for item in items)
        if "4" in asked and len(asked) < 10:
            raise KeyboardInterrupt
        return original(self, model, items)

    monkeypatch.setattr(Counting, "ask", ask)
    with pytest.raises(KeyboardInterrupt):
        run(models["diff"], tmp_path / "a")
    with (tmp_path / "a" / "items.jsonl").open("a") as file:
        file.write('{"id": "3", "sco')  # killed while writing
    asked[:] = ["padding"] * 10
    result = run(models["diff"], tmp_path / "a")
    assert asked[10:] == ["3", "4", "5"]
    assert result.num_items == 6
    again = run(models["diff"], tmp_path / "a")
    assert (asked[10:], again) == (["3", "4", "5"], result)


def test_another_evaluation_in_the_folder_is_refused(models, tmp_path):
    run(models["diff"], tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"got parameters\.size 4 where 6 is rec"):
        run(models["diff"], tmp_path / "a", size=4)
    with pytest.raises(CheckpointError, match=r"got model\.label 'softmax' where 'diff'"):
        run(models["softmax"], tmp_path / "a")
    other = copy.copy(models["diff"])  # the same weights under another setting answer otherwise
    other.network = copy.copy(other.network)
    other.network.config = copy.deepcopy(other.network.config)
    other.network.config.rms_norm_eps = 0.5
    with pytest.raises(CheckpointError, match=r"got model\.config '\w{16}' where '\w{16}' is reco"):
        run(other, tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="other files"):
        run(models["diff"], tmp_path / "b")


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (["key_values"], ["samples=3"], "must be PROTOCOL.KEY=VALUE"),
        (["key_values"], ["needle.samples=3"], "'needle' must be a protocol of this run"),
        (["key_values"], ["key_values.sampels=3"], "Did you mean 'key_values.samples'?"),
    ],
)
def test_wrong_settings(names, settings, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        parts(names, settings)
