"""The papers' tables and figures beside records: every claim once, nothing mixed."""

import hashlib
from collections import Counter
from pathlib import Path

import plotly.graph_objects as go
import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.evaluation.icl.label_protocols import ManyShot
from diffattn.lab.records.evaluations import Comparison, Metric, register
from diffattn.lab.report import paper
from diffattn.lab.report.beside_papers import build_papers_report
from diffattn.lab.report.claims.records import (
    EVALUATIONS,
    committed_folders,
    read_claim_records,
    read_folders,
)
from diffattn.lab.report.claims.tables import CLAIMS, MEASURES, claims_table, measured_claims
from diffattn.lab.report.paper import many_shot_curves, paper_results, published_tables
from evaluation_folders import eval_result, paired
from lab.report.page_reader import figures, outline_of, own_part

ROOT = Path(__file__).parents[3]


def page_of(folders, out, root=None):
    assert build_papers_report(folders, out, root) == out
    return own_part(out.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "report.html"
    return page_of(committed_folders(ROOT), out, ROOT)


def test_every_stated_claim_has_a_measure_and_stands_in_one_section():
    named = Counter(claim["id"] for result in paper_results() for claim in result.claims)
    assert named == Counter(MEASURES.keys())


def test_the_page_of_the_committed_records(committed):
    outline = outline_of(committed)
    assert len(set(outline.ids)) == len(outline.ids)
    anchors = {link[1:] for link in outline.loads if link.startswith("#")}
    assert {section.id for section in paper_results()} | {"provenance"} <= anchors
    assert anchors <= set(outline.ids)
    assert str(ROOT) not in committed
    assert "was left out" not in committed
    for name, figure in figures(committed).items():
        assert len(go.Figure(figure).data) > 0, name
    text = " ".join(outline.text)
    for row in measured_claims(read_claim_records(ROOT)):
        assert row.claim.says in text
        cells = 2 if row.measured is not None else 0  # on the first screen, and beside the paper
        assert committed.count(f">{row.claim.id}</th>") == cells, row.claim.id
    for word in ("published/text", "published/scaling", "published/recall", "Eq. (1)"):
        assert word in text


def test_without_records_the_papers_stand_alone(tmp_path):
    page = page_of([], tmp_path / "report.html")
    assert f"Of {len(CLAIMS)} claims, 0 are measured here." in page
    assert "Here: 0 of 2 claims measured" in page
    assert "Here: 0 of 0 claims" not in page  # where the papers' own results have none
    assert "Measured here" not in page
    assert "3.087" in page


# What is damaged or does not fit is named and left out.


def evaluation(
    folder, label, *, version=2, parameters=None, value=0.5, weights="", variant="needle",
    selection=None,
):  # fmt: skip
    metric = Metric(name="recall", value=value, n=9, headline=True)
    result = eval_result(
        "needle", version=version, variant=variant, parameters=parameters or {}, metrics=[metric],
        model={"label": label, "weights": weights or label}, selection=selection or {},
    )  # fmt: skip
    register(folder, label, variant)
    (folder / label / variant).mkdir(parents=True)
    result.write(folder / label / variant)
    return folder


LEFT_OUT = "{}'s result of {} was left out: {}."
FEW = {"selection": {"limit": 5}}
A, B, OTHER_PART = {"weights": "a"}, {"weights": "b"}, {"variant": "fig5"}
OTHER_WEIGHTS = "its weights are b, those of another result of diff-seed0 a"


@pytest.mark.parametrize(
    ("results", "kept", "gaps"),
    [
        (
            [("softmax-seed0", {}), ("diff-seed0", {"version": 1}),
             ("diff-seed1", {"parameters": {"length": 4096}}), ("diff-seed2", {})],
            ["softmax-seed0 needle", "diff-seed2 needle"],
            [("diff-seed0", "needle", "version 1 of the protocol, not 2"),
             ("diff-seed1", "needle", "length differ from those of softmax-seed0")],
        ),
        (
            [("softmax-seed0", FEW), ("diff-seed0", {})], ["diff-seed0 needle"],
            [("softmax-seed0", "needle", "it was asked 5 items (--limit), diff-seed0 all")],
        ),
        (
            [("diff-seed0", A), ("diff-seed0", B)], ["diff-seed0 needle"],
            [("diff-seed0", "needle", OTHER_WEIGHTS)],
        ),
        (
            [("diff-seed0", A), ("diff-seed0", A)], ["diff-seed0 needle"],
            [("diff-seed0", "needle", "there is another one of the same weights")],
        ),
        (  # else a mean over parts would be of no model
            [("diff-seed0", A), ("diff-seed0", B | OTHER_PART), ("diff-seed0", A | OTHER_PART)],
            ["diff-seed0 needle", "diff-seed0 fig5"], [("diff-seed0", "fig5", OTHER_WEIGHTS)],
        ),
    ],
    ids=["versions", "few-questions", "weights", "twice", "parts"],
)  # fmt: skip
def test_results_that_cannot_be_compared_are_left_out(tmp_path, results, kept, gaps):
    folders = [
        evaluation(tmp_path / str(index), label, **options)
        for index, (label, options) in enumerate(results)
    ]
    outcome = read_folders(folders)
    assert [f"{of.model['label']} {of.variant}" for of in outcome.evaluations] == kept
    assert outcome.gaps == [LEFT_OUT.format(*gap) for gap in gaps]


def test_committed_results_of_two_versions_are_refused(tmp_path):
    """The page of a study may not mix them."""
    evaluation(tmp_path / EVALUATIONS / "a", "softmax-seed0")
    assert len(read_claim_records(tmp_path).evaluations) == 1
    evaluation(tmp_path / EVALUATIONS / "b", "diff-seed0", version=1)
    with pytest.raises(CheckpointError, match=r"got: diff-seed0's .* version 1 .*, not 2"):
        claims_table(tmp_path)


def reservation_about_needles(folders):
    rows = measured_claims(read_folders(folders))
    return next(row.measured.uninformative for row in rows if row.claim.id == "needles")


def test_scores_at_the_floor_tell_nothing(tmp_path):
    folders = [
        evaluation(tmp_path / f"{kind}{seed}", f"{kind}-seed{seed}", value=value)
        for kind, values in (("softmax", (0.0, 0.0, 0.1)), ("diff", (0.1, 0.0, 0.0)))
        for seed, value in enumerate(values)
    ]
    verdict = "uninformative: neither guesses well"
    of = {"model": "diff", "baseline": "softmax", "over": "seeds", "primary": True}
    row = paired(**of, verdict=verdict)
    Comparison(baseline="softmax", differences=[row]).write(folders[0])
    assert reservation_about_needles(folders) == "neither guesses well"
    (folders[0] / "comparison.json").unlink()
    assert reservation_about_needles(folders) == ""


def test_damaged_foreign_and_second_studies_are_left_out(make_study, tmp_path):
    study, second, damaged = (make_study(name) for name in ("one", "two", "three"))
    (damaged / "results.json").write_text("{", encoding="utf-8")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    outcome = read_folders([damaged, study, second, foreign], tmp_path)
    assert outcome.study_folders == {"text": study}
    assert outcome.places == {"published/text": "one"}
    first, other, last = outcome.gaps
    assert first.startswith("three was left out: ")
    assert other == "two was left out: there must be one study of text, got one, too."
    assert last.startswith("foreign was left out: must hold study.json")


def test_a_page_needs_one_record_of_those_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"one record must be readable, got none: .*was left"):
        build_papers_report([tmp_path], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_printed_numbers_are_those_that_were_checked():
    """When they were entered they gave the papers' means, sums, gaps and dashed lines."""
    folder = Path(paper.__file__).parent / "published"
    names = ("in_context_learning", "scaling", "tables")
    content = b"".join((folder / f"{name}.json").read_bytes() for name in names)
    assert hashlib.sha256(content).hexdigest()[:16] == "071c221100324e36"
    for name, curve in many_shot_curves().items():
        assert list(ManyShot(dataset=name).grid) == curve["shots"]


def test_every_published_table_is_on_the_page(committed):
    text = " ".join(outline_of(committed).text)
    shown = {name for section in paper_results() for name in section.tables}
    assert shown == set(published_tables())
    for name in shown:
        assert published_tables()[name].caption in text
