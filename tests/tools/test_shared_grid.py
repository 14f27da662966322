"""The grid has the two rates that end lowest, and a run is measured by its own rows."""

import pytest

from diffattn.files.io import write_json, write_jsonl
from tools.studies.shared_grid import GRID, RATES, grid, measure, tries, with_chosen_rates

LOSSES = {"shared_diff_r8": (2.1, 2.0, None), "shared_diff_r8_no_norm": (2.3, 2.2, 2.1)}
"""By rate; one run diverged."""


@pytest.fixture
def tried(tmp_path):
    """Made-up runs of one step on the sweep's seed."""
    for member in tries(grid()):
        variant = member.config.name.split("-")[0]
        loss = LOSSES[variant][RATES.index(member.config.train.learning_rate)]
        write_json(tmp_path / member.config.name / "results.json", {"validation_loss": loss})
        rows = [{"step": 0, "validation_loss": 5.0}]
        rows += [{"step": 1, "train_loss": 5.0, "gradient_norm": 2.0}]
        write_jsonl(tmp_path / member.config.name / "metrics.jsonl", rows)
    return tmp_path


def test_the_norm_decides_which_rate_a_model_has(tried):
    study = with_chosen_rates(grid(), tried)
    rates = study.base_rates()
    without = {name: rates.pop(name) for name in ("diff_no_norm", "shared_diff_r8_no_norm")}
    assert set(without.values()) == {RATES[2]}
    assert set(rates.values()) == {RATES[1]}
    assert set(GRID) < set(rates)
    runs = study.trials(study.base_rates())
    assert len(runs) == 3 * len(study.variants)
    assert {run.config.train.seed for run in runs} == {0, 1, 2}


def test_a_diverged_run_counts_what_it_did_not_do(tried):
    member = tries(grid())[2]
    (run,) = measure([member], tried).values()
    assert (run["diverged"], run["diverged_step"], run["largest_gradient_norm"]) == (True, 1, 2.0)
    assert run["clipped_share"] == 1
    assert run["rate"] == RATES[2]
