"""Numbers for other programs are those of the records, in the form those programs read."""

import csv
import io
import json

import pytest

from diffattn.lab.records.evaluations import Comparison, Metric
from diffattn.lab.report.evaluation.tables import csv_text, harness_text, markdown_text
from evaluation_folders import eval_result, paired

PAIRED = paired(
    variant="table1", score="average", difference=0.125, low=-0.25, high=0.5, p_value=0.25,
    where={"task": "piqa"},
)  # fmt: skip


def result(label="a_1"):
    metrics = [
        Metric(name="acc", value=0.25, n=8, low=0.1, high=0.5, method="Wilson",
               where={"task": "piqa"}, headline=True),
        Metric(name="acc_norm", value=0.5, n=8, method="Wilson", where={"task": "piqa"}),
        Metric(name="average", value=0.3, n=16, headline=True),
    ]  # fmt: skip
    model = {"label": label, "path": "x", "parameters": 7, "dtype": "float32", "weights": "w"}
    return eval_result(
        "lm_tasks", version=2, variant="table1", model=model, parameters={"num_fewshot": 5},
        metrics=metrics,
    )  # fmt: skip


def test_csv_has_every_number_in_full():
    text = csv_text([result()], Comparison(baseline="a", differences=[PAIRED]))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [(entry["kind"], entry["name"], entry["where"], entry["value"]) for entry in lines] == [
        ("metric", "acc", "task=piqa", "0.25"), ("metric", "acc_norm", "task=piqa", "0.5"),
        ("metric", "average", "", "0.3"), ("difference", "average", "task=piqa", "0.125"),
    ]  # fmt: skip
    assert (lines[3]["p"], lines[3]["version"], lines[3]["model"]) == ("0.25", "2", "b")


def test_markdown_escapes_what_would_end_a_cell():
    hostile = result("a|b_50%\\x")
    assert r"| a\|b_50%\x |" in markdown_text([hostile], None)


def test_the_harness_reads_its_own_format():
    results = json.loads(harness_text([result()]))
    assert results["results"]["piqa"]["acc,none"] == 0.25
    # Its own: the sample's standard deviation over the root of n.
    assert results["results"]["piqa"]["acc_stderr,none"] == pytest.approx((0.25 * 0.75 / 7) ** 0.5)
    assert results["results"]["table1"]["average_stderr,none"] == "N/A"
    assert (results["versions"]["piqa"], results["n-shot"]["piqa"]) == (2, 5)
    assert results["n-samples"]["piqa"] == {"original": 8, "effective": 8}
