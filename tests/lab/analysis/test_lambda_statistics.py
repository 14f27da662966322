"""λ over tokens and heads, and over a run's log."""

import pytest
import torch

from diffattn.errors import CheckpointError
from diffattn.files.io import append_jsonl
from diffattn.lab.analysis.session import initial_lambdas, lambda_flags, lambda_log
from diffattn.lab.records.run import RunRecord
from diffattn.ops.inputs.formulas import lambda_init
from diffattn.probes.activations import LambdaStatistics


def test_statistics_are_those_of_all_tokens():
    lam = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    statistics = LambdaStatistics(3)
    for part in lam.split([7, 1, 42]):
        statistics.add(part)
    found = statistics.result()
    assert found["mean"] == pytest.approx(lam.mean(0).tolist())
    assert found["std"] == pytest.approx(lam.std(0, correction=0).tolist())
    assert found["min"] == lam.amin(0).tolist()
    assert found["max"] == lam.amax(0).tolist()
    assert found["below_0"] == (lam < 0).double().mean(0).tolist()
    assert found["above_1"] == (lam > 1).double().mean(0).tolist()
    assert found["lam"] == pytest.approx(float(lam.mean()))


def test_flags_below_0_and_above_1():
    layers = []
    for value in (0.3, -0.2, 1.5):
        statistics = LambdaStatistics(2)
        statistics.add(torch.full((4, 2), value))
        layers.append(statistics.result())
    assert layers[0]["std"] == [0, 0]  # no rounding is taken for a spread
    assert lambda_flags(layers) == [
        "Layer 1: λ is below 0 for 100.0% of tokens and heads, as far as -0.200.",
        "Layer 2: λ is above 1 for 100.0% of tokens and heads, as far as 1.500.",
    ]


def test_initial_values():
    model = {"attention_type": "diff", "num_hidden_layers": 3}
    assert initial_lambdas(model) == [lambda_init(layer) for layer in range(3)]
    assert initial_lambdas(model | {"lambda_init": 0.5}) == [0.5] * 3
    assert initial_lambdas(model | {"lambda_init": [0.1, 0.2, 0.3]}) == [0.1, 0.2, 0.3]
    assert initial_lambdas(model | {"attention_type": "diff_v2"}) is None
    assert initial_lambdas({"attention_type": None}) is None


def make_run(folder, rows):
    config = {"model": {"attention_type": "diff", "num_hidden_layers": 2}}
    RunRecord(name="diff-seed0", config=config, seed=0).write(folder)
    for row in rows:
        append_jsonl(folder / "metrics.jsonl", row)
    return folder


def test_the_log_of_a_run(tmp_path):
    rows = [
        {"step": 0, "lam": [0.2, 0.4]},
        {"step": 5, "train_loss": 3.0},
        {"step": 10, "lam": [-0.1, 0.5]},
        {"step": 20, "lam": [-0.3, 1.1]},
    ]
    assert lambda_log(make_run(tmp_path / "run", rows)) == {
        "run": "diff-seed0",
        "steps": [0, 10, 20],
        "values": [[0.2, 0.4], [-0.1, 0.5], [-0.3, 1.1]],
        "lambda_init": [lambda_init(0), lambda_init(1)],
        "flags": [
            "Layer 0: λ was below 0 at 2 of 3 logged steps, first at step 10.",
            "Layer 1: λ was above 1 at 1 of 3 logged steps, first at step 20.",
        ],
    }
    assert lambda_log(make_run(tmp_path / "softmax", [{"step": 0, "train_loss": 3.0}])) is None


@pytest.mark.parametrize("lam", [[0.2], 0.2, [0.1, None]])
def test_a_damaged_log_is_named(tmp_path, lam):
    folder = make_run(tmp_path, [{"step": 0, "lam": lam}])
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: lam must hold a number for each"):
        lambda_log(folder)
