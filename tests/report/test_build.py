"""The whole report, from a made-up study folder."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from diffattn.errors import CheckpointError
from diffattn.report.build import build_report
from diffattn.report.page.wording import number
from diffattn.report.study.published import study_summary
from record_files import read_record, write_record

SECTIONS = ["models", "loss", "curves", "costs", "lambda", "maps", "provenance"]
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Outline(HTMLParser):
    """Ids, loading attributes and balance of the tags of a page."""

    def __init__(self):
        super().__init__()
        self.ids, self.loads, self.open, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.loads += [values[key] for key in ("src", "href", "srcset", "action") if key in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.text.append(data)


def own_part(page):
    """The page without the plotly script, which is not ours to judge."""
    assert page.count(get_plotlyjs()) == 1
    return page.replace(get_plotlyjs(), "")


def build(study, **options):
    path = build_report(study, **options)
    assert path == study / "report.html"
    return own_part(path.read_text(encoding="utf-8"))


def outline_of(page):
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    return outline


def figures(page):
    """Id and specification of every chart."""
    specs = re.findall(r'<script type="application/json" data-chart="(.*?)">(.*?)</script>', page)
    return {name: json.loads(spec) for name, spec in specs}


def test_every_section_and_run_is_there(make_study):
    page = build(make_study())
    outline = outline_of(page)
    text = " ".join(outline.text)
    assert [name for name in outline.ids if name in SECTIONS] == SECTIONS
    assert len(set(outline.ids)) == len(outline.ids)
    for kind in ("softmax", "diff", "diff_v2", "shared_diff"):
        for seed in range(3):
            assert text.count(f"{kind}-seed{seed}") >= 8
    for name in ("Transformer (softmax)", "DIFF V1", "DIFF V2", "Shared DIFF"):
        assert name in text
    assert "Made-up statement: 4 DIFF heads are < 8" in text
    assert "912,768" in text
    assert "What is missing" not in text


def test_charts_hold_the_recorded_numbers(make_study):
    study = make_study(seeds=(0, 1))
    charts = figures(build(study))
    assert len(charts) == 2 + 1 + 3 + 10
    rows = (study / "runs/diff-seed1/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [json.loads(row).get("validation_loss") for row in rows]
    traces = charts["chart-validation"]["data"]
    thin = [t for t in traces if t["legendgroup"] == "diff" and not t["showlegend"]]
    assert thin[1]["y"] == [round(x, 6) for x in losses if x is not None]
    assert sum(t["showlegend"] for t in traces) == 4
    maps = read_record(study / "maps.json")["layers"]["diff"]
    signed = charts["map-1-d"]["data"][0]
    assert signed["z"] == maps["difference"]
    assert signed["zmin"] == -signed["zmax"]
    first, second = charts["map-1-a1"]["data"][0], charts["map-1-a2"]["data"][0]
    assert (first["zmin"], first["zmax"]) == (0, second["zmax"])


def test_charts_are_valid_plotly(make_study):
    """The Python side of plotly knows every attribute by name and refuses unknown ones."""
    for name, spec in figures(build(make_study(seeds=(0, 1), num_steps=50))).items():
        figure = go.Figure(spec)
        assert len(figure.data) == len(spec["data"]) > 0, name


def test_page_loads_nothing(make_study):
    page = build(make_study(), published=make_study("published", scale="study"))
    loads = outline_of(page).loads
    assert [load for load in loads if not load.startswith("#")] == ["data:,"]
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|url\(", page)


def test_text_from_files_is_escaped(make_study):
    study = make_study(scale="<script>alert(2)</script>")
    results = read_record(study / "results.json")
    results["statement"] = "<img src=x onerror=alert(3)> & more \ud800"
    write_record(study / "results.json", results)
    run = study / "runs/diff-seed0/run.json"
    record = read_record(run)
    record["hardware"] = {"processor": '"><script>alert(4)</script>'}
    write_record(run, record)
    page = build(study)
    assert "<script>alert" not in page
    assert "</script>alert" not in page
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(3)&gt; &amp; more ?" in page
    labels = figures(page)["map-0-a"]["layout"]["xaxis"]["ticktext"]
    assert labels[5] == "&lt;script&gt;"  # plotly reads labels as markup
    outline_of(page)


def test_charts_show_text_from_files_as_it_is(make_study):
    """Names of runs reach the hover text; quotes, which plotly would not decode, stay."""
    study = make_study(seeds=(0,), num_steps=10)
    run = study / "runs/diff-seed0/run.json"
    record = read_record(run)
    write_record(run, record | {"name": '</script><b>"a\'s" & b'})
    page = build(study)
    assert "</script><b>" not in page
    traces = figures(page)["chart-validation"]["data"]
    (hover,) = [t["hovertemplate"] for t in traces if t["legendgroup"] == "diff"]
    assert hover == (
        'DIFF V1, &lt;/script&gt;&lt;b&gt;"a\'s" &amp; b<br>step %{x:,}: %{y:.4f}<extra></extra>'
    )
    outline_of(page)


def test_every_page_runs_the_same_script(make_study):
    """One element, without data: a content policy can name its hash."""
    scripts = []
    for seeds in ((0,), (0, 1)):
        page = build(make_study(f"study{len(seeds)}", seeds=seeds, num_steps=10))
        elements = re.findall(r"<script(.*?)>(.*?)</script>", page, flags=re.DOTALL)
        scripts.append([code for kind, code in elements if "application/json" not in kind])
        assert not re.search(
            r"<[^>]*\son\w+=", re.sub(r"<script.*?</script>", "", page, flags=re.S)
        )
    assert scripts[0] == scripts[1]
    assert len(scripts[0]) == 1
    assert "newPlot" in scripts[0][0]


def test_same_study_gives_same_bytes(make_study):
    study, published = make_study(num_steps=50), make_study("published", num_steps=50)
    first = build_report(study, published=published).read_bytes()
    assert build_report(study, published=published).read_bytes() == first
    moved = study.rename(study.with_name("moved"))
    assert build_report(moved, published=published).read_bytes() == first


def test_out_names_the_file(make_study, tmp_path):
    out = tmp_path / "new" / "page.html"
    assert build_report(make_study(), out) == out
    assert out.stat().st_size < 7e6


def test_missing_files_are_named(make_study):
    study = make_study()
    (study / "maps.json").unlink()
    (study / "costs.json").unlink()
    shutil.rmtree(study / "runs" / "diff-seed1")
    (study / "runs" / "diff_v2-seed0" / "results.json").unlink()
    (study / "runs" / "softmax-seed0" / "metrics.jsonl").unlink()
    page = build(study)
    assert "maps.json is missing" in page
    assert "Run softmax-seed0 has lost its metrics.jsonl" in page
    assert "No run of diff with seed 1 was found." in page
    assert "Run diff_v2-seed0 has not finished: it stopped at step 300." in page
    # The study's own summary still stands.
    assert "results.json is missing" not in page


def test_interrupted_study_is_summarised_from_its_runs(make_study):
    study = make_study()
    (study / "results.json").unlink()
    (study / "runs" / "diff-seed2" / "results.json").unlink()
    for seed in range(3):
        shutil.rmtree(study / "runs" / f"shared_diff-seed{seed}")
    page = build(study)
    text = " ".join(outline_of(page).text)
    assert "The study has not finished, so it makes no statement." in text
    assert "diff-seed1 − softmax-seed1" in text
    assert "diff-seed2 − softmax-seed2" not in text
    assert "no run found" in text
    assert "no finished pair" in text
    assert "No maps were recorded" not in text


def test_study_that_has_not_started(make_study):
    study = make_study()
    for name in ("results.json", "maps.json", "costs.json"):
        (study / name).unlink()
    shutil.rmtree(study / "runs")
    page = build(study)
    outline_of(page)
    assert page.count("was found.") == 12
    assert "No run recorded the validation loss" in page


def test_one_seed_has_no_interval(make_study):
    page = build(make_study(seeds=(5,)))
    assert "one seed: no interval, no verdict" in page
    assert "none: one seed" in page
    assert "softmax-seed5" in page


def test_contradicting_summary_is_named(make_study):
    study = make_study()
    path = study / "runs/diff-seed0/results.json"
    value = read_record(path)
    write_record(path, value | {"validation_loss": 9.75})
    assert re.search(r"for diff-seed0, but the run&#39;s own file gives 9\.75", build(study))


def test_published_study_has_its_own_provenance(make_study):
    published = make_study("published", scale="study", num_steps=500, num_layers=2)
    outline = outline_of(page := build(make_study(), published=published))
    assert [f"published-{name}" for name in SECTIONS] == [
        name for name in outline.ids if name.removeprefix("published-") in SECTIONS
    ][6:-1]
    assert outline.ids.index("published") < outline.ids.index("provenance")
    assert "run on 2001-02-03 on Made-up processor at commit c0ffeec0ffee" in page
    assert page.count('<td data-label="Study">published</td>') == 3


def test_a_summary_shows_its_numbers_and_no_gaps(make_study, tmp_path):
    folder = make_study("published", scale="study", num_steps=500, num_layers=2)
    path = tmp_path / "summary.json"
    write_record(path, study_summary(folder))
    page = build(make_study(), published=path)
    whole, part = outline_of(build(make_study(), published=folder)), outline_of(page)
    absent = ["published-curves", "published-maps"]
    ids = [name for name in whole.ids if not re.match("published-(chart|map)", name)]
    assert [name for name in ids if name not in absent] == [
        name for name in part.ids if not re.match("published-(chart|map)", name)
    ]
    text = " ".join(" ".join(part.text).split())
    assert "are in published/text of the repository" in text
    assert page.count('class="gap"') == 1  # for readers without scripts
    assert "published-chart-differences" in part.ids
    shown = text[text.index("Published study", text.index("Published study") + 1) :]
    study = read_record(folder / "results.json")
    for entry in study["types"].values():
        assert f"{entry['validation_loss']['mean']:.4f}" in shown
    for difference in study["differences"]:
        assert number(difference["mean"], signed=True) in shown
    for fact in ("912,768", "published/text/runs/diff-seed0/run.json", "c0ffeec0ffee", "7,990"):
        assert fact in shown


@pytest.mark.parametrize("content", ["", "[]", '{"schema": 1}', '{"schema": 7}'])
def test_damaged_summary_is_refused(make_study, tmp_path, content):
    (tmp_path / "summary.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"summary\.json"):
        build_report(make_study(), published=tmp_path / "summary.json")


def test_protocol_versions_share_no_table(make_study):
    published = make_study("published")
    path = published / "results.json"
    value = read_record(path)
    value["protocol"]["version"] = 2
    write_record(path, value)
    page = build(make_study(), published=published)
    assert "so their numbers share no table" in page
    assert 'data-label="Study"' not in page


@pytest.mark.parametrize(
    "name",
    [
        "study.json",
        "results.json",
        "costs.json",
        "maps.json",
        "runs/diff-seed1/run.json",
        "runs/diff-seed1/results.json",
        "runs/diff-seed1/costs.json",
        "runs/diff-seed1/metrics.jsonl",
    ],
)
@pytest.mark.parametrize("content", ["", '{"schema": 1', '{"schema": 7}', "[]", "null", "7"])
def test_damaged_files_are_refused(make_study, name, content):
    if name.endswith("jsonl") and not content:
        content = "\n"  # an empty metrics file is a run that has not logged yet
    study = make_study(seeds=(1,), num_steps=10)
    (study / name).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=name.rsplit("/", 1)[-1]):
        build_report(study)
    assert not (study / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("maps.json", lambda v: v["layers"]["diff"]["map_2"].pop()),
        ("maps.json", lambda v: v["layers"]["diff"].pop("difference")),
        ("maps.json", lambda v: v["layers"].update(diff=None)),
        ("results.json", lambda v: v["types"]["diff"].pop("validation_loss")),
        ("results.json", lambda v: v["types"]["diff"]["runs"].pop()),
        ("results.json", lambda v: v["types"]["diff"]["validation_loss"].update(low="x")),
        ("results.json", lambda v: v["differences"][0].pop("mean")),
        ("results.json", lambda v: v["differences"][0].update(runs=[["a", "b", "c"]])),
    ],
)
def test_incomplete_fields_are_refused(make_study, name, change):
    study = make_study(seeds=(0, 1), num_steps=10)
    value = read_record(study / name)
    change(value)
    write_record(study / name, value)
    with pytest.raises(CheckpointError, match=name):
        build_report(study)


def test_foreign_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"study\.json: file must exist"):
        build_report(tmp_path)


def test_two_runs_of_one_seed_are_refused(make_study):
    study = make_study(seeds=(0,), num_steps=10)
    shutil.copytree(study / "runs" / "diff-seed0", study / "runs" / "again")
    with pytest.raises(CheckpointError, match=r"one run\.json per type and seed"):
        build_report(study)


def test_report_needs_no_torch(make_study):
    study = make_study(seeds=(0,), num_steps=10)
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from pathlib import Path\n"
        "from diffattn.report.build import build_report\n"
        f"build_report(Path({str(study)!r}))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert (study / "report.html").exists()
