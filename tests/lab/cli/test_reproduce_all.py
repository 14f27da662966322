"""``diffattn reproduce`` as a whole: what runs, in which order, and the page at its end."""

import json
import re
import shutil
from pathlib import Path

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.catalog.models import FEW
from diffattn.lab.cli.reproduce import reproduce_all
from diffattn.lab.studies.whole import finish
from lab.report.made_up_analysis import make_analysis
from lab.report.made_up_studies import write_gradient_flow
from lab.report.made_up_study import VERDICT, write_study
from lab.report.page_reader import outline_of
from record_files import change_record, read_record

PUBLISHED = Path(__file__).parents[3] / "published"


def test_the_page_of_a_short_scale_shows_both_studies(tmp_path):
    shutil.copytree(PUBLISHED / "recall", tmp_path / "recall")
    write_study(tmp_path / "text", num_steps=10, variants=FEW)
    page = finish(tmp_path, "laptop")
    results = read_record(tmp_path / "results.json")
    assert list(results["stages"]) == ["recall", "text"]
    sentence = results["stages"]["text"]["sentence"]
    assert sentence.startswith("After 10 steps")
    assert re.fullmatch("[0-9a-f]{64}", results["stages"]["text"]["sha256"])
    outline = outline_of(page.read_text(encoding="utf-8"))
    assert {"results", "costs", "loss", "provenance"} <= {*outline.ids}
    assert sentence in " ".join(outline.text)
    assert {"chart-learning", "chart-text-loss", "chart-committed"} <= {*outline.ids}


def only(monkeypatch, folder, stage, run):
    """One stage alone, by a function that stands for its study."""
    monkeypatch.setattr("diffattn.lab.cli.reproduce.run_with_progress", run)
    reproduce_all("study", folder, [stage], {}, None, dry_run=False, json_=False)


def test_one_stage_again_leaves_the_others_on_the_page(tmp_path, monkeypatch):
    shown = []

    def page(folders, out, root, *, stages, stage_benchmarks, scale):
        shown.extend([*(stage.href for stage in stages), *stage_benchmarks])
        return out

    monkeypatch.setattr("diffattn.lab.studies.whole.build_papers_report", page)
    write_study(tmp_path / "text", num_steps=10, scale="study")
    make_analysis().write(tmp_path / "analysis")
    (tmp_path / "recall").mkdir()  # it has begun
    (tmp_path / "throughput").mkdir()
    (tmp_path / "throughput" / "cpu.json").touch()
    only(monkeypatch, tmp_path, "gradient-flow", lambda _, out, *rest: write_gradient_flow(out))
    stages = read_record(tmp_path / "results.json")["stages"]
    assert list(stages) == ["text", "gradient-flow", "analysis"]
    assert stages["text"]["sentence"] == VERDICT["sentence"]
    assert shown == [*(f"{name}/report.html" for name in stages), tmp_path / "throughput"]


def test_studies_of_two_scales_share_no_page(tmp_path, monkeypatch):
    write_study(tmp_path / "text", num_steps=10)
    change_record(tmp_path / "text" / "study.json", scale="smoke")
    with pytest.raises(ConfigError, match="studies of scale 'study', got text of scale 'smoke'"):
        only(monkeypatch, tmp_path, "gradient-flow", None)


def test_a_study_that_has_trained_nothing_gives_no_runs(tmp_path, monkeypatch):
    write_study(tmp_path / "text", num_steps=10, scale="study")
    shutil.copytree(tmp_path / "text", tmp_path / "ablations", ignore=lambda *of: ["runs"])
    reused = []

    def run(study, folder, workers, reuse):
        reused.extend(reuse)
        raise KeyboardInterrupt  # more is not asked here

    with pytest.raises(KeyboardInterrupt):
        only(monkeypatch, tmp_path, "rank", run)
    assert reused == [tmp_path / "text"]


@pytest.mark.scheduled
def test_two_whole_runs_have_the_same_results(cli, tmp_path):
    results = []
    for name in ("first", "second"):
        folder = tmp_path / name
        called = cli("reproduce", "--scale", "smoke", "--out", folder)
        assert called.code == 0, called
        lines = called.out.splitlines()
        assert len(lines) <= 20
        assert f"Page: {folder / 'report.html'}" in lines
        results.append((folder / "results.json").read_bytes())
    assert results[0] == results[1]
    again = cli("reproduce", "--scale", "smoke", "--out", tmp_path / "first", "--json")
    assert json.loads(again.out)["stages"].keys() == {"recall", "text"}
