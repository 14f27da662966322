"""The whole report, from a made-up study folder."""

import re
import shutil

import plotly.graph_objects as go
import plotly.offline
import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.catalog.models import FEW
from diffattn.lab.report.build import build_report, markdown_results
from diffattn.lab.report.page.wording import type_name
from lab.report.made_up_study import ALL, TYPES, VERDICT
from lab.report.page_reader import SECTIONS, build, figures, outline_of, shown, unpack
from record_files import change_record, read_record

SUBSETS = [
    {"variants": ("softmax",), "seeds": (0,)},
    {"variants": ("none", "none_ffn"), "seeds": (0, 1)},
    {"variants": ("softmax", "none", "something new"), "seeds": (3,)},
    {"variants": TYPES, "verdict": None},
    {"variants": ("softmax", "diff_v2", "diff_v2_heads", "diff_v2_gate"), "sweep": True},
]


def test_every_section_and_run_is_there_and_nothing_is_loaded(make_study):
    page = build(make_study(variants=ALL, sweep=True, num_steps=25, num_layers=2))
    outline = outline_of(page)
    text = " ".join(outline.text)
    assert [name for name in outline.ids if name in SECTIONS] == SECTIONS
    assert len(set(outline.ids)) == len(outline.ids)
    for kind in ALL:
        assert type_name(kind) in text
        for seed in range(3):
            assert page.count(f"{kind}-seed{seed}") >= 3
    for run in ("diff-common-seed1", "diff-lr0.004-sweep100", "none-common-seed2"):
        assert run in text
    assert "Made-up statement: 4 DIFF heads are < 8" in text
    assert "912,768" in text
    assert "What is missing" not in text
    assert [load for load in outline.loads if not load.startswith("#")] == ["data:,"]
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|url\(", page)


def test_the_verdict_stands_first_and_an_uninformative_study_says_why(make_study):
    bad = {"informative": False, "sentence": "Uninformative: <b>.", "reasons": ["one", "<two>"]}
    page = build(make_study(verdict=bad, num_steps=10))
    assert '<p class="verdict uninformative">Uninformative: &lt;b&gt;.</p>' in page
    assert "<ul><li>one</li><li>&lt;two&gt;</li></ul>" in page
    good = build(make_study("good", num_steps=10))
    assert "uninformative" not in good.split("<main>")[1]
    text = [part.strip() for part in outline_of(good).text if part.strip()]
    first = text.index(VERDICT["sentence"])
    assert text[first - 1] == "Where do the numbers come from?"  # the last link of the contents
    assert text.index(VERDICT["details"][0]) > first


@pytest.mark.parametrize("options", SUBSETS, ids=str)
def test_any_part_of_a_study_makes_a_page(make_study, options):
    study = make_study(**{"num_steps": 25, "num_layers": 2, **options})
    page = build(study)
    outline = outline_of(page)
    assert len(set(outline.ids)) == len(outline.ids)
    assert set(re.findall(r'<a href="#(.*?)">', page)) <= set(outline.ids)
    for name, spec in figures(page).items():
        assert len(go.Figure(spec).data) > 0, name
    assert markdown_results(study).count("| ---") > 0
    for name in ("results.json", "maps.json"):
        (study / name).unlink()
    outline_of(build(study))


def test_every_page_runs_the_same_scripts(make_study, tmp_path, monkeypatch):
    """A loader and what it unpacks, both without data: a content policy can name their hashes."""
    monkeypatch.setattr("plotly.offline.get_plotlyjs", plotly.offline.offline.get_plotlyjs)
    scripts, codes = [], []
    for seeds in ((0,), (0, 1)):
        page = build(make_study(f"study{len(seeds)}", seeds=seeds, num_steps=10))
        elements = re.findall(r"<script(.*?)>(.*?)</script>", page, flags=re.DOTALL)
        scripts.append([code for kind, code in elements if "figures" not in kind])
        whole = (tmp_path / f"study{len(seeds)}" / "report.html").read_text(encoding="utf-8")
        codes.append(unpack(whole, "code"))
        tags = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
        assert not re.search(r"<[^>]*\son\w+=", tags)
    assert scripts[0] == scripts[1]
    assert len(scripts[0]) == 2
    assert codes[0] == codes[1]
    assert "newPlot" in codes[0]


def test_same_study_gives_same_bytes(make_study):
    study = make_study(num_steps=10)
    first = build_report(study).read_bytes()
    assert build_report(study).read_bytes() == first
    assert build_report(study.rename(study.with_name("moved"))).read_bytes() == first


def test_missing_files_are_named(make_study):
    study = make_study(num_steps=25)
    (study / "maps.json").unlink()
    (study / "costs.json").unlink()
    shutil.rmtree(study / "runs" / "diff-seed1")
    (study / "runs" / "diff_v2-seed0" / "results.json").unlink()
    (study / "runs" / "softmax-seed0" / "metrics.jsonl").unlink()
    page = build(study)
    assert "maps.json is missing" in page
    assert "Run softmax-seed0 has lost its metrics.jsonl" in page
    assert "Run diff-seed1 was not found." in page
    assert "Run diff_v2-seed0 has not finished: it stopped at step 25." in page
    # The study's own summary still stands.
    assert "results.json is missing" not in page


def test_fewer_seeds_of_an_ablation_are_no_gap(make_study):
    study = make_study(variants=("softmax", "softmax_half", "diff_v2_constant"), num_steps=10)
    (study / "results.json").unlink()
    change_record(study / "study.json", fewer_seeds=1)
    for name in ("softmax_half", "diff_v2_constant"):
        for run in (study / "runs").glob(f"{name}-seed[12]"):
            shutil.rmtree(run)
    page = build(study)
    assert "Run diff_v2_constant" not in page
    assert "Run softmax_half-seed1, 2 was not found." in page
    change_record(study / "study.json", fewer_seeds=2)
    assert "Run diff_v2_constant-seed1 was not found." in build(study)


def test_interrupted_and_unstarted_studies_have_a_page(make_study):
    study = make_study(num_steps=25)
    (study / "results.json").unlink()
    for seed in range(3):
        shutil.rmtree(study / "runs" / f"shared_diff-seed{seed}")
    page = build(study)
    text = " ".join(outline_of(page).text)
    assert "There is no verdict yet" in text
    assert "Run shared_diff-seed0 to 2 was not found." in text
    assert "chart-loss" in figures(page)
    assert "chart-differences" not in figures(page)
    for name in ("maps.json", "costs.json"):
        (study / name).unlink()
    shutil.rmtree(study / "runs")
    page = build(study)
    outline_of(page)
    assert page.count("-seed0 to 2 was not found.") == 4


OF_RUN = ("run.json", "results.json", "costs.json", "metrics.jsonl")


@pytest.mark.parametrize(
    "name",
    ["study.json", "results.json", "costs.json", "maps.json"]
    + [f"runs/diff-seed1/{name}" for name in OF_RUN],
)
def test_damaged_files_are_refused(make_study, name):
    study = make_study(seeds=(1,), num_steps=10, variants=("softmax", "diff"))
    (study / name).write_text("[]", encoding="utf-8")
    with pytest.raises(CheckpointError, match=name.rsplit("/", 1)[-1]):
        build_report(study)
    assert not (study / "report.html").exists()


def test_a_study_of_another_version_is_refused(make_study):
    study = make_study(num_steps=10)
    change_record(study / "study.json", schema=7)
    with pytest.raises(CheckpointError, match="schema must be"):
        build_report(study)


def test_the_page_names_the_text_and_the_match(make_study):
    study = make_study(variants=FEW, num_steps=25)
    data = read_record(study / "study.json")["data"] | {"source": "my {texts}"}
    change_record(study / "study.json", data=data, match="flops")
    text = shown(study)
    assert "After 25 steps on my {texts} the losses" in text
    assert "tokens) of my {texts} (3.14 million tokens)" in text
    assert "are chosen to give the same training FLOPs" in text


def test_a_run_goes_by_the_name_of_its_folder(make_study):
    """A copied one has a record of another name, perhaps that of a run of this study."""
    study = make_study(variants=("softmax", "none"), sweep=True, seeds=(0,), num_steps=10)
    before = build(study)
    change_record(study / "runs" / "none-seed0" / "run.json", name="none-common-seed0")
    (study / "runs" / "none-seed0" / "costs.json").unlink()  # those of the study stand for them
    after = build(study)
    assert "Copied from another study" not in before
    assert after.count("none-seed0, recorded as none-common-seed0") == 1
    shutil.copytree(study / "runs" / "none-seed0", study / "runs" / "again")
    assert "Run again is in the folder but not part of this study." in build(study)
