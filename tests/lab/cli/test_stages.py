"""A later stage of training starts from an earlier run, as a user calls it."""

import json

import pytest

from diffattn.files.io import read_json, read_jsonl


def test_a_dry_run_names_folder_and_hash(cli, trained, small):
    called = cli(
        "train", "smoke", "--attention", "diff", "--init-from", trained, "--out", "unused", *small,
        "--set", "model.rope_parameters=null", "--dry-run",
    )  # fmt: skip
    assert (called.code, called.err) == (0, "")
    manifest = read_json(trained / "model" / "manifest.json")
    weights = manifest["files"]["model.safetensors"]["sha256"]
    assert json.loads(called.out)["init"] == {"folder": str(trained), "weights": weights}


def test_what_cannot_be_started_from_is_refused_in_one_line(fails, trained, small, tmp_path):
    command = ("train", "smoke", "--out", tmp_path / "run", *small, "--init-from")
    line = fails(*command, trained, code=2)
    assert "model.attention_type must be 'diff' to start from the weights in" in line
    line = fails(*command, tmp_path / "none", code=1)
    assert line.endswith("must be a run directory, a model folder or a hub name, got nothing.")
    line = fails(
        *command, trained, "--attention", "diff", "--set", "model.rms_norm_eps=1e-4", code=2
    )
    assert "model.rms_norm_eps must be 1e-05 to start from" in line
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def packed(cli, tmp_path_factory):
    """The corpus of the laptop siblings, little of it held out."""
    data = tmp_path_factory.mktemp("packed") / "data"
    command = ("pack", "python", "--out", data, "--vocab-size", 1_024)
    assert cli(*command, "--validation-fraction", 0.005).code == 0
    return data


@pytest.mark.scheduled
@pytest.mark.parametrize(
    "stages",
    [
        ("diff-transformer-3b", "long-context-diff", "math-1-diff", "math-2-diff"),
        ("transformer-3b", "long-context-softmax"),
    ],
    ids=["diff", "softmax"],
)
def test_the_laptop_siblings_are_stages_of_one_training(stages, cli, packed, tmp_path):
    """The main run, its long context, its mathematics: as their recipes say, in few steps."""
    few = ("num_steps=20", "evaluate_every=10", "warmup_steps=5")
    few = [word for setting in few for word in ("--set", f"train.{setting}")]
    before = None
    for name in stages:
        start = [] if before is None else ["--init-from", tmp_path / before]
        command = ("train", f"{name}-laptop", "--data", packed, "--out", tmp_path / name, *few)
        called = cli(*command, *start)
        assert called.code == 0, called
        upsamples = "long documents, up-sampled within each of" in called.err
        assert upsamples == name.startswith("long-context")
        first = read_jsonl(tmp_path / name / "metrics.jsonl")[0]
        assert first["step"] == 0
        if before is not None:
            earlier = read_json(tmp_path / before / "results.json")["validation_loss"]
            # θ or length changed, and fewer tokens are read; fresh weights would be near 6.9.
            assert first["validation_loss"] == pytest.approx(earlier, abs=0.5)
            refused = cli(*command)  # the finished stage is another run without its start
            assert refused.code == 1
            assert "got init None where" in refused.err
        before = name
    recorded = read_json(tmp_path / stages[-1] / "run.json")["config"]["model"]
    assert recorded["rope_parameters"]["rope_theta"] == 640_000.0
