"""What an older record does not say of its model is not compared; what it says is."""

import copy

import pytest
from test_runner import run
from test_selection import part

from diffattn.errors import CheckpointError
from diffattn.lab.evaluation.gather import gather
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.evaluation.selection import Selection
from diffattn.lab.records.evaluations import LATER_FACTS
from evaluation_folders import write
from record_files import change_record, read_record


@pytest.fixture
def reworded(models):
    """The same weights and entries under another setting: it gives other answers."""
    other = copy.copy(models["diff"])
    other.network = copy.copy(other.network)
    other.network.config = copy.deepcopy(other.network.config)
    other.network.config.rms_norm_eps = 0.5
    return other


def make_older(folder):
    for name in ("run.json", "result.json"):
        record = read_record(folder / name)
        model = record["config"]["model"] if name == "run.json" else record["model"]
        for fact in LATER_FACTS:
            del model[fact]
        change_record(folder / name, **record)


def test_a_changed_configuration_is_another_model(models, reworded, tmp_path):
    run(models["diff"], tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"got model\.config '\w{16}' where '\w{16}' is reco"):
        run(reworded, tmp_path / "a")


def test_an_older_record_is_continued_and_says_what_cannot_be_told(models, reworded, tmp_path):
    result = evaluate(models["diff"], part(), tmp_path / "counting")
    make_older(tmp_path / "counting")
    said = []
    again = evaluate(reworded, part(), tmp_path / "counting", on_message=said.append)
    assert again.metrics == result.metrics
    assert said == [
        "Its record is older and lacks model.end_tokens, model.config, model.tokenizer_hash, "
        "model.chat_template: whether they are the same cannot be told."
    ]
    with pytest.raises(CheckpointError, match=r"model\.label"):
        run(models["softmax"], tmp_path / "counting")


def test_older_shares_are_taken_and_those_of_another_configuration_are_not(
    models, reworded, tmp_path
):
    for i, model in ((1, models["diff"]), (2, reworded)):
        shard = Selection(shard=(i, 2))
        evaluate(model, part(), tmp_path / f"counting.shard-{i}-of-2", selection=shard)
    make_older(tmp_path / "counting.shard-1-of-2")
    said = []
    evaluate(models["diff"], part(), tmp_path / "counting", on_message=said.append)
    assert said == ["counting.shard-2-of-2 has other settings and is left out"]


def test_folders_of_one_label_are_one_model_unless_both_say_otherwise(tmp_path):
    for folder, variant, config in (
        ("old", "a", {}),
        ("new", "b", {"config": "1"}),
        ("same", "c", {"config": "1"}),
        ("other", "d", {"config": "2"}),
    ):
        path = write(tmp_path / folder, "m", [0, 1], variant=variant)
        model = read_record(path / "result.json")["model"]
        change_record(path / "result.json", model=model | config)
    found = gather([tmp_path / name for name in ("old", "new", "same", "other")])
    assert found.labels == ["m", "m@other"]
