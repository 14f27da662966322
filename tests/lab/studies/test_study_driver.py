"""The driver of all studies: other processes give the same results, and no weights stay."""

import math
import shutil
from functools import partial

import pytest

from diffattn.files.io import read_json
from diffattn.lab.catalog.recipes.gradient_flow import GRADIENT_FLOW
from diffattn.lab.catalog.recipes.stability import STABILITY
from diffattn.lab.studies.reproduce import reproduce
from record_files import the_row


@pytest.fixture
def small_plans(monkeypatch):
    """Fewer sizes of gradients, and a rate at which every run diverges."""
    gradients = GRADIENT_FLOW["smoke"]()
    names = ("base", "depth-1", "width-16", "large-values")
    fewer = {"arms": {name: gradients["arms"][name] for name in names}}
    monkeypatch.setitem(GRADIENT_FLOW, "smoke", lambda: gradients | fewer)
    stability = STABILITY["smoke"]() | {"learning_rates": (2e-3, 1e30)}
    monkeypatch.setitem(STABILITY, "smoke", stability.copy)


def gradients_are_halved(results):
    of = {"type": "softmax_half", "phase": "start", "measure": "gradient"}
    means = [the_row(results["ratios"], **of, matrix=matrix)["mean"] for matrix in ("v", "o")]
    assert means == pytest.approx([0.5, 0.5], rel=0.05)
    assert all(math.isfinite(row["mean"]) for row in results["ratios"])


def divergence_is_a_result(results):
    for of_type in results["types"].values():
        usual, absurd = of_type["rates"]
        assert usual["diverged"] == [False]
        assert absurd["diverged_steps"][0] is not None
        assert absurd["loss"]["values"] == [math.log(300)]


@pytest.mark.scheduled
@pytest.mark.usefixtures("small_plans")
@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("gradient-flow", gradients_are_halved),
        ("stability", divergence_is_a_result),
        ("scaling", lambda results: None),
    ],
)
def test_a_study_goes_on_in_other_processes_as_if_it_had_not_stopped(kind, check, corpus, tmp_path):
    settings = (f"data.source={corpus}", "data.vocab_size=300", "data.validation_fraction=0.2")
    make = partial(reproduce, "smoke", kind=kind, settings=settings, on_message=lambda line: None)
    whole, again = tmp_path / "whole", tmp_path / "again"
    make(out=whole, workers=1)
    shutil.copytree(whole, again)
    for run in sorted((again / "runs").iterdir())[:2]:
        shutil.rmtree(run)
    (again / "results.json").unlink()
    assert make(out=again, workers=2) == again / "report.html"
    results = read_json(again / "results.json")
    assert results == read_json(whole / "results.json")
    check(results)
    assert kind == "scaling" or not list(tmp_path.glob("*/runs/*/model"))
    if kind == "scaling":
        make(out=again, workers=2, extrapolate=True)
        assert read_json(again / "results.json")["extrapolate"]
