"""A run that is watched ends as one that is not, and says what it looked like."""

import math
from dataclasses import replace

import pytest

from continued_runs import assert_same_files, stop
from diffattn.files.io import read_json, read_jsonl, recover_jsonl
from diffattn.lab.training.run import train


def rows_of(folder):
    """Without what differs from run to run."""
    rows = read_jsonl(folder / "watch.jsonl")
    return [{name: x for name, x in row.items() if name != "speed"} for row in rows]


@pytest.mark.scheduled
@pytest.mark.parametrize("attention_type", ["diff", "diff_v2"])
def test_watching_changes_nothing(attention_type, finished, make_run, data, tmp_path):
    engine = {"watch_every": 3, "peak_flops": 1e12}
    config = make_run(attention_type, engine=engine)
    stop(config, data, tmp_path / "again", 8)  # two rows, one of which is measured again
    assert [row["step"] for row in recover_jsonl(tmp_path / "again" / "watch.jsonl")[0]] == [3, 6]
    for name in ("again", "whole"):
        train(config, data, tmp_path / name)
        assert_same_files(tmp_path / name, finished / attention_type)
    rows = read_jsonl(tmp_path / "whole" / "watch.jsonl")
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "again")
    assert [row["step"] for row in rows] == [3, 6, 9, 12]
    metrics = read_jsonl(tmp_path / "whole" / "metrics.jsonl")
    logged = {row["step"]: row for row in metrics if "train_loss" in row}
    flops = read_json(tmp_path / "whole" / "run.json")["model"]["train_flops_per_token"]
    for row in rows:
        assert row["gradient_norm"] == logged[row["step"]]["gradient_norm"]
        assert row["tokens"] == 128 * row["step"]
        assert len(row["layers"]) == 2
        assert all(layer["hidden_max"] > 0 for layer in row["layers"])
        assert row["lam_below_0"] == row["lam_above_1"] == []
        speed = row["speed"]
        assert speed["mfu"] == pytest.approx(speed["tokens_per_second"] * flops / 1e12)
        assert speed["peak_bytes"] > 10**6
    assert not (finished / attention_type / "watch.jsonl").exists()


def test_a_step_that_is_left_out_has_no_gradient_norm(make_run, bad_batches, data, tmp_path):
    """And no row of gradients; nor does it end the run that is to go on without it."""
    config = make_run(guard={"not_finite": "skip"}, engine={"watch_every": 1}, num_steps=3)
    config = replace(config, gradient_steps=(2, 3))
    bad_batches(config, {2: lambda model, loss: loss * math.nan})
    train(config, data, tmp_path / "run")
    norms = [row["gradient_norm"] for row in read_jsonl(tmp_path / "run" / "watch.jsonl")]
    assert [norm is None for norm in norms] == [False, True, False]
    (row,) = read_jsonl(tmp_path / "run" / "gradients.jsonl")
    assert (row["step"], row["gradient_norm"]) == (3, norms[2])


def test_lambdas_outside_their_range_are_flagged(make_run, data, tmp_path):
    config = make_run("diff", engine={"watch_every": 2}, num_steps=3)
    config.model.lambda_init = [-3.0, 4.0]
    train(config, data, tmp_path / "run")
    (row,) = read_jsonl(tmp_path / "run" / "watch.jsonl")
    assert (row["lam_below_0"], row["lam_above_1"]) == ([0], [1])
    assert row["speed"]["mfu"] is None
    assert math.isfinite(row["layers"][1]["context_rms"])
