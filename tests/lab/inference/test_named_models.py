"""Models as a user names them."""

import json
from functools import partial

import pytest

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import write_json
from diffattn.lab.inference import named_models

labelled = partial(named_models.labelled, on_message=print, has_no_folder=lambda path: True)


def test_labels_are_given_or_the_last_part_of_the_path(tmp_path):
    odd = tmp_path / "a=b"
    odd.mkdir()  # a path that exists is no label
    assert labelled(["runs/a", "two=runs/b", str(odd)]) == {
        "a": "runs/a", "two": "runs/b", "a=b": str(odd),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (["=runs/a"], r"MODEL: must be \[LABEL=\]PATH"),
        ([".a=runs/a"], r"MODEL: must be \[LABEL=\]PATH"),
        ([], "MODEL: one model or more is needed"),
    ],
)
def test_bad_labels_name_the_option(models, message):
    with pytest.raises(ConfigError, match=message):
        labelled(models, option="MODEL")


@pytest.fixture
def study(tmp_path):
    """A study of four runs, the last without weights."""
    folder = tmp_path / "study"
    for name, loss in (("softmax", 1.0), ("diff", 3.0), ("diff_v2", 2.0), ("diff_uniform", 0.5)):
        model = folder / "runs" / f"{name}-seed0" / "model"
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps({"attention_type": name}))
        write_json(model.parent / "results.json", {"validation_loss": loss})
    (folder / "runs" / "shared_diff-seed0").mkdir()
    (folder / "study.json").write_text("{}")
    return folder


def test_of_a_study_the_best_differential_model_is_taken_and_named(study):
    lines = []
    best = study / "runs" / "diff_v2-seed0"
    assert named_models.labelled([str(study)], on_message=lines.append) == {
        "diff_v2-seed0": str(best)
    }
    line = lines[0]
    assert f"is taken: {best} (validation loss 2.000; beside it: diff-seed0, " in line
    whole = study.parent / "whole"
    whole.mkdir()
    study.rename(whole / "text")
    assert named_models.best_of_study(str(whole), lines.append).endswith("text/runs/diff_v2-seed0")
    (whole / "text").rename(study)
    with pytest.raises(CheckpointError, match=r"got several: .*runs/diff-seed0, .* Name one"):
        named_models.require_model(str(study / "runs"))
    for name in ("diff", "diff_v2", "diff_uniform"):
        (study / "runs" / f"{name}-seed0" / "model" / "config.json").unlink()
    assert named_models.best_of_study(str(study), lines.append).endswith("softmax-seed0")
    (study / "runs" / "softmax-seed0" / "results.json").unlink()
    with pytest.raises(CheckpointError, match="whose runs keep no weights or are not done"):
        named_models.best_of_study(str(study), lines.append)


def test_a_missing_folder_is_compared_with_folders_of_models_alone(study):
    (study.parent / "stady").mkdir()
    with pytest.raises(CheckpointError, match=r"got nothing\. Did you mean 'study'\?"):
        named_models.require_model(str(study.parent / "studi"))
    with pytest.raises(CheckpointError, match=r"got nothing\.$"):
        named_models.require_model(str(study.parent / "texts"))
