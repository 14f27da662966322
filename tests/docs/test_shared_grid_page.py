"""The tables of Shared DIFF's grid are made from the record, by the rule that stands above them."""

import numpy as np
import pytest

from diffattn.files.io import read_json
from diffattn.lab.stats.paired import holm, paired_difference, paired_t_test
from published_pages import ROOT, estimate, prose

PAGE = prose("docs/records/shared_grid.md")
RUNS = read_json(ROOT / "docs" / "records" / "shared_grid.json")["runs"]
SEEDS = (0, 1, 2)
LAMBDAS = {"": "schedule", "_lambda_08": "0.8", "_lambda_05": "0.5"}
GRID = [(rank, ending) for rank in (2, 8, 16) for ending in LAMBDAS]
CENTRE = "shared_diff_r8"
BESIDE = {
    "softmax": "softmax",
    "diff": "V1",
    "diff_no_norm": "V1 without norm",
    CENTRE: "rank 8",
    f"{CENTRE}_no_norm": "rank 8 without norm",
    "none": "no attention",
}


def values(variant, measure="loss"):
    return np.array([RUNS[f"{variant}-seed{seed}"][measure] for seed in SEEDS])


def interval(differences):
    return estimate(paired_difference(differences, np.zeros_like(differences)))


def test_cells_of_the_grid():
    differences = {
        (rank, ending): values(f"shared_diff_r{rank}{ending}") - values(CENTRE)
        for rank, ending in GRID
        if (rank, ending) != (8, "")
    }
    p_values = holm([paired_t_test(x) for x in differences.values()])
    adjusted = dict(zip(differences, p_values, strict=True))
    for rank, ending in GRID:
        cells = [str(rank), LAMBDAS[ending]]
        cells.append(f"{values(f'shared_diff_r{rank}{ending}').mean():.3f}")
        here = differences.get((rank, ending))
        cells += ["", ""] if here is None else [interval(here), f"{adjusted[rank, ending]:.2f}"]
        assert " ".join(f"| {' | '.join(cells)} |".split()) in PAGE


@pytest.mark.parametrize("ending", ["_lambda_08", "_lambda_05"])
def test_the_interaction(ending):
    low, high = (
        values(f"shared_diff_r{rank}{ending}") - values(f"shared_diff_r{rank}") for rank in (2, 16)
    )
    assert f"{LAMBDAS[ending]}: {interval(high - low)}" in PAGE


@pytest.mark.parametrize("variant", BESIDE)
def test_how_steadily_models_trained(variant):
    cells = [BESIDE[variant], f"{values(variant, 'rate')[0]:g}", f"{values(variant).mean():.3f}"]
    shares = ("loss_spike_share", "gradient_spike_share", "clipped_share")
    cells += [f"{100 * values(variant, share).mean():.1f} %" for share in shares]
    cells.append(f"{np.median(values(variant, 'median_gradient_norm')):.2f}")
    cells.append(f"{values(variant, 'largest_gradient_norm').max():.1f}")
    assert f"| {' | '.join(cells)} |" in PAGE
    assert not values(variant, "diverged").any()


@pytest.mark.parametrize(
    ("variant", "baseline"),
    [(f"{CENTRE}_no_norm", CENTRE), ("diff_no_norm", "diff"), ("softmax", "none")],
)
def test_losses_against_a_baseline(variant, baseline):
    title = f"{BESIDE[variant]} minus {BESIDE[baseline]}"
    assert f"{title}: {interval(values(variant) - values(baseline))}" in PAGE


def test_the_rates_are_those_that_ended_lowest():
    for variant in (CENTRE, f"{CENTRE}_no_norm"):
        tried = [run for name, run in RUNS.items() if name.startswith(f"{variant}-lr")]
        assert len(tried) == 3
        assert min(tried, key=lambda run: run["loss"])["rate"] == values(variant, "rate")[0]
