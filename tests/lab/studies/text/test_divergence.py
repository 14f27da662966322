"""Runs of a comparison whose numbers leave the range of floats: tries may, those that count not."""

import json
import re
import shutil
from dataclasses import replace
from functools import partial

import pytest

from diffattn.errors import DiffAttnError
from diffattn.files.io import read_json
from diffattn.lab.report.build import build_report
from diffattn.lab.report.page.tables import Table
from diffattn.lab.report.study.details import rates_table
from diffattn.lab.report.study.files import read_study
from diffattn.lab.studies import worker, workers
from diffattn.lab.studies.reproduce import reproduce
from diffattn.lab.studies.study import swept_rates
from diffattn.lab.studies.text import comparison as module
from diffattn.lab.studies.text.comparison import Sweep, comparison
from diffattn.lab.studies.text.summary import require_losses
from diffattn.lab.training.callbacks import DivergenceError
from record_files import read_record, write_record

FAR_TOO_HIGH = 1e30


def by_jobs(planned, data, folder, *, workers, on_progress, short):
    """What worker processes do, job by job in this one."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in planned:
        worker.train_run(json.loads(worker.job(run, data, folder / run.config.name)))


def test_a_try_without_a_loss_is_the_worst():
    tried = ((1e-3, 3.0), (2e-3, 2.9), (4e-3, None), (8e-3, None))
    sweep = Sweep(tried=tried)
    assert (sweep.best, sweep.inside, sweep.leading(3)) == (2e-3, True, [2e-3, 1e-3, 4e-3])
    assert Sweep(tried=tried, whole=((1e-3, 2.5), (2e-3, None))).best == 1e-3


@pytest.mark.scheduled
def test_a_sweep_goes_on_past_rates_that_diverge(study, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "train_runs", by_jobs)
    rates = {"learning_rates": (1e-2, FAR_TOO_HIGH), "sweep_share": 0.75, "whole_rates": 2}
    monkeypatch.setitem(module._SCALES, "smoke", {"variants": ("softmax",), "seeds": (0,), **rates})
    monkeypatch.setattr(
        "diffattn.lab.studies.text.comparison.swept_rates", partial(swept_rates, extensions=0)
    )
    shutil.copytree(study / "data", tmp_path / "data")
    settings = (*settings, "train.max_grad_norm=0")
    page = reproduce("smoke", out=tmp_path, settings=settings, on_message=[].append)
    swept = read_json(tmp_path / "results.json")["rates"]["variants"]
    assert swept["softmax"]["best"] == 1e-2
    for key, kind in (("tried", "sweep"), ("whole", "whole")):
        low, high = swept["softmax"][key]
        assert 0 < low["validation_loss"] < 10
        assert high["validation_loss"] is None
        assert high["run"] == f"softmax-lr1e+30-{kind}1000"
        run = read_json(tmp_path / "runs" / high["run"] / "results.json")
        assert (run["validation_loss"], run["diverged_step"] > 0) == (None, True)
    for path in tmp_path.rglob("*.json*"):
        if "model" not in path.parts and "data" not in path.parts:
            assert not re.search("NaN|Infinity", path.read_text(encoding="utf-8")), path
    read = read_study(tmp_path)
    assert read.gaps == ()
    shown = rates_table(read)
    assert isinstance(shown, Table)
    assert [[cell.text for cell in row[-2:]].count("diverged") for row in shown.rows] == [1, 1]
    assert "diverged" in page.read_text(encoding="utf-8")


def test_a_run_that_counts_must_not_diverge(copied, settings, monkeypatch):
    monkeypatch.setattr(workers, "_Worker", None)  # no process is started
    run = copied / "runs" / "diff-seed0"
    shutil.rmtree(run / "model")
    (run / "costs.json").unlink()
    lost = {"validation_loss": None, "diverged_step": 3, "reason": "as a worker says"}
    write_record(run / "results.json", read_record(run / "results.json") | lost)
    with pytest.raises(DiffAttnError) as error:
        reproduce("smoke", out=copied, settings=settings, on_message=[].append)
    assert str(error.value) == (
        "reproduce: every run that counts must end with a loss, got none from diff-seed0 (not "
        "finite at step 3). The others are kept. Choose another --out and --set a lower "
        "train.learning_rate."
    )
    (copied / "results.json").unlink()
    gap = "Run diff-seed0 finished without a finite validation loss."
    assert gap in read_study(copied).gaps
    assert gap in build_report(copied).read_text(encoding="utf-8")


def test_a_row_may_diverge_but_not_what_all_are_measured_by():
    """Softmax attention and no attention say whether a study of ablations says anything."""
    config, heard = comparison("smoke", kind="ablations"), []
    trials = config.trials(config.base_rates())
    results = {run.config.name: {"validation_loss": 3.0} for run in trials}
    diverged = {"validation_loss": None, "diverged_step": 7}
    results["diff_v2_raw_lambda-seed0"] = diverged
    require_losses(config, results, heard.append)
    assert heard == ["diff_v2_raw_lambda-seed0 (not finite at step 7): its rows are not compared"]
    with pytest.raises(DiffAttnError, match=r"got none from none-seed0 \(not finite at step 7\)"):
        require_losses(config, results | {"none-seed0": diverged}, heard.append)


def test_other_runs_on_text_fail_as_before(study, settings, tmp_path):
    diverging = (*settings, f"train.learning_rate={FAR_TOO_HIGH}", "train.max_grad_norm=0")
    config = comparison("smoke", settings=diverging)
    (run, *_) = config.trials(config.base_rates())
    assert run.records_divergence
    run = replace(run, records_divergence=False)
    order = json.loads(worker.job(run, study / "data", tmp_path / "run"))
    with pytest.raises(DivergenceError, match="must stay finite"):
        worker.train_run(order)
    assert not (tmp_path / "run" / "results.json").exists()
