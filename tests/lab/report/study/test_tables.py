"""Tables and the words and numbers in them."""

import math
from dataclasses import replace
from statistics import fmean, median

import pytest

from diffattn.lab.report.build import markdown_results
from diffattn.lab.report.page import wording
from diffattn.lab.report.page.run_tables import cost_table, median_cost, models_table
from diffattn.lab.report.study.details import (
    part_shares,
    parts_table,
    phase_table,
    rates_table,
    runs_table,
)  # fmt: skip
from diffattn.lab.report.study.files import PARTS, read_study
from diffattn.lab.report.study.tables import other_tables, results_table
from lab.report.made_up_study import ALL, TYPES, VERDICT
from record_files import change_record, read_record, the_row


def texts(of):
    """Every text in the cells of a table."""
    return " ".join(text for row in of.rows for cell in row for text in (cell.text, cell.note))


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        ((-0.03, -0.05, -0.01), "lower by 0.0300"),
        ((0.03, 0.01, 0.05), "higher by 0.0300"),
        ((-0.03, -0.07, 0.01), "no reliable difference"),
        ((0.0, 0.0, 0.0), "no reliable difference"),
        ((-0.03, None, None), "one seed cannot tell"),
    ],
)
def test_verdict(interval, words):
    assert wording.verdict(dict(zip(("mean", "low", "high"), interval, strict=True))) == words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (wording.number(-3.14159265), "−3.1416"),
        (wording.number(0.25, signed=True), "+0.2500"),
        (wording.number(-0.0000012), "−0.000001"),
        (wording.number(12345.678), "12,345.6780"),
        *((wording.number(value), "—") for value in (None, math.nan, True, "3")),
        (wording.percent(-1280, 912_384), "−0.14 %"),
        (wording.mebibytes(3 * 2**19), "1.5 MiB"),
        (wording.listing(["a", "b", "c"]), "a, b and c"),
        *(
            (wording.brief_names(runs), short)
            for runs, short in (
                (["a-seed0", "a-seed1", "a-seed2", "b-seed0"], ["a-seed0 to 2", "b-seed0"]),
                (["a-seed0", "a-seed2"], ["a-seed0, 2"]),
                (["a-seed0 to 2", "12", "-seed"], ["a-seed0 to 2", "12", "-seed"]),
                (["a-seed" + "9" * 5_000], ["a-seed" + "9" * 5_000]),
            )
        ),
    ],
    ids=str,
)
def test_numbers_and_names_in_words(text, expected):
    assert text == expected


def row_of(of, name):
    """Cells of one model's row."""
    (row,) = (row for row in of.rows if row[0].text == wording.type_name(name))
    return row


def test_markdown_table(make_study):
    study = make_study(variants=(*TYPES, "none"), num_steps=25)
    sentence, details, types, others = markdown_results(study).rstrip("\n").split("\n\n")
    assert sentence == VERDICT["sentence"]
    assert details.splitlines() == [f"- {message}" for message in VERDICT["details"]]
    lines = types.splitlines()
    assert len(lines) == 2 + 4
    assert len({line.count("|") for line in lines}) == 1
    results = read_record(study / "results.json")
    diff = results["differences"][0]
    row = next(line for line in lines if line.startswith("| DIFF V1 "))
    assert "| 912,768 (" in row
    assert f"| {wording.number(diff['mean'], signed=True)} (" in row
    assert "| No attention" in others


def test_tables_hold_the_recorded_numbers(make_study):
    study = read_study(make_study(variants=ALL, sweep=True, num_steps=25, num_layers=2))
    every = texts(runs_table(study))
    best, (common, *others) = results_table(study), other_tables(study)
    for table, rate in ((best, "best"), (common, "common")):
        mean = study.results["variants"]["diff"]["at"][rate]["validation_loss"]["mean"]
        assert row_of(table, "diff")[2].text == f"{mean:.4f}"
    assert "at the Transformer's learning rate" in common.caption
    assert other_tables(read_study(make_study("one rate", num_steps=10))) == []
    main = " ".join(map(texts, [best, common, *others]))
    for name, entry in study.results["variants"].items():
        summary = entry["at"]["best"]["validation_loss"]
        for value in (summary["mean"], summary["low"], summary["high"]):
            assert f"{value:.4f}" in main, name
        assert entry["what"] in main or entry["role"] in ("baseline", "type")
        for group in entry["at"].values():
            assert all(f"{value:.4f}" in every for value in group["validation_loss"]["values"])
    for entry in study.results["differences"]:
        at_common_to_none = (entry["at"], entry["baseline"]) == ("common", "none")
        if entry["metric"] == "validation_loss" and not at_common_to_none:
            assert wording.number(entry["mean"], signed=True) in main
    models = [cell for row in models_table(study).rows for cell in row]
    assert ("+2,304", "+0.04 %") in [(cell.text, cell.note) for cell in models]
    costs = texts(cost_table(study))
    assert "7,990" in costs
    assert "0.70×" in costs


def test_a_run_on_a_gpu_takes_the_time_of_the_clock(make_study):
    """There the processor waits, and its seconds say nothing of the model."""
    runs = read_study(make_study(variants=("softmax",), num_steps=10)).runs_of("softmax")
    for device, clock in (("cpu", "cpu_seconds"), ("cuda", "wall_seconds")):
        moved = [replace(run, record=replace(run.record, device=device)) for run in runs]
        assert median_cost(moved, "seconds") == median(run.costs[clock] for run in runs)


def test_the_training_loss_stands_beside_that_of_validation(make_study):
    """The mean of the last five rows of each log, paired by seed."""
    study = read_study(make_study(variants=("softmax", "diff"), num_steps=50))
    ends = {
        name: [
            fmean(loss for _, loss in run.series("train_loss")[-5:]) for run in study.runs_of(name)
        ]
        for name in study.variants
    }
    mean = fmean(a - b for a, b in zip(ends["diff"], ends["softmax"], strict=True))
    table = results_table(study)
    assert table.headers[-1] == "Training loss, minus Transformer"
    assert row_of(table, "diff")[-1].text == wording.number(mean, signed=True)
    alone = read_study(make_study("alone", variants=("diff",), num_steps=10))
    assert row_of(results_table(alone), "diff")[-1].text == "—"


def test_a_difference_is_known_both_ways(make_study):
    study = read_study(make_study(variants=("softmax", "none"), num_steps=10))
    there, here = (study.difference(*pair) for pair in (("none", "softmax"), ("softmax", "none")))
    assert (here["mean"], here["low"]) == (-there["mean"], -there["high"])
    assert here["runs"][0] == ("softmax-seed0", "none-seed0")
    assert study.difference("none", "diff") is None


def test_losses_by_part_and_their_differences(make_study):
    study = read_study(make_study(variants=(*TYPES, "none"), num_steps=25))
    of = parts_table(study, study.variants, PARTS, "By part.")
    parts = study.results["variants"]["diff"]["at"]["best"]["parts"]
    row = row_of(of, "diff")
    assert [cell.text for cell in row[1:]] == [f"{parts[p]['mean']:.4f}" for p in PARTS]
    pair = {"variant": "diff", "baseline": "softmax"}
    change = the_row(study.results["differences"], **pair, metric="first_occurrence")
    assert row[-1].note.startswith(wording.number(change["mean"], signed=True) + " (")
    assert "repeated pair 20 %" in part_shares(study)
    assert row_of(of, "Bigram + copy counts")[1].text == "2.6400"


def test_runs_that_did_not_pass_are_counted(make_study):
    folder = make_study(num_steps=50)
    variants = read_record(folder / "results.json")["variants"]
    for steps, cells in (
        ([20, 30, 40], ["3 of 3", "30", "20 to 40 (75 %)"]),
        ([None, 30, 20], ["2 of 3", "30", "20 to over 50 (75 %)"]),
        ([None, 30, None], ["1 of 3", "over 50", "30 to over 50 (75 %)"]),
    ):
        variants["diff"]["at"]["best"]["phase_steps"] = steps
        change_record(folder / "results.json", variants=variants)
        of = phase_table(read_study(folder))
        assert [cell.text for cell in row_of(of, "diff")[2:]] == cells


def test_the_chosen_rate_is_marked(make_study):
    study = read_study(make_study(variants=(*TYPES, "none"), sweep=True, num_steps=25))
    assert [cell.note for cell in row_of(rates_table(study), "diff")[2:]] == [
        "", "", "chosen", "",
    ]  # fmt: skip


def test_runs_of_all_steps_decide_between_rates(make_study):
    folder = make_study(variants=(*TYPES, "none"), sweep=True, num_steps=25)
    rates = read_record(folder / "results.json")["rates"]
    rates["variants"]["diff"]["best"] = 1e-3
    rates["variants"]["diff"]["whole"] = [
        {"run": f"diff-lr{rate:g}-whole100", "learning_rate": rate, "validation_loss": loss}
        for rate, loss in ((1e-3, 3.0), (2e-3, 3.1))
    ]
    change_record(folder / "results.json", rates=rates)
    study = read_study(folder)
    short, whole = (row for row in rates_table(study).rows if row[0].text == "DIFF V1")
    assert [cell.note for cell in short[2:]] == [""] * 4
    assert [cell.text for cell in whole[1:]] == ["all", "—", "3.0000", "3.1000", "—"]
    assert [cell.note for cell in whole[2:]] == ["", "chosen", "", ""]
