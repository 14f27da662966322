"""The page to decide from is short, and its numbers are those of the records and of the results."""

import re
from statistics import median

import pytest

from published_pages import FINDINGS, ROOT, estimate, prose, results_of

CLAIMS = (FINDINGS / "claims.md").read_text(encoding="utf-8")
RESULTS = (FINDINGS / "results.md").read_text(encoding="utf-8")


def row_of(title):
    (row,) = (line for line in CLAIMS.splitlines() if line.startswith(f"| **{title}"))
    return row


def means(task, measure):
    """As the page prints them, by type."""
    models = results_of("practical")["tasks"][task]["members"]
    return {name: f"{x['measures'][measure]['mean']:.3f}" for name, x in models.items()}


def test_it_is_read_in_minutes():
    assert len(CLAIMS.split()) <= 1_500
    assert len(prose("docs/findings/known.md").split()) <= 600
    assert len([line for line in CLAIMS.splitlines() if line.startswith("| **")]) == 8


def test_steps_until_recall():
    task = results_of("recall")["tasks"]["noisy_recall"]
    steps = {
        name: f"{median(row['solved_steps']):g}"
        for name, row in {**task["types"], **task["controls"]}.items()
        if None not in row["solved_steps"]
    }
    row = row_of("Retrieval")
    assert f"step {steps['diff']} with V1, {steps['softmax']} with the Transformer" in row
    assert f"{steps['diff_v2']} with V2, {steps['shared_diff']} with Shared DIFF" in row
    assert f"second map is uniform needs {steps['diff_uniform']}" in row
    results = " ".join(RESULTS.partition("## Recall")[2].split())
    for entry in task["differences"]:
        if "p" in entry or (entry["variant"], entry["baseline"]) == ("diff_uniform", "diff"):
            shown = estimate(entry, "{:+g}".format).replace("-", "−").replace("+0", "0")
            mean, interval = shown.removesuffix(")").split(" (")
            assert interval in results[results.index(f" {mean} ") :][:40]


@pytest.mark.parametrize(
    ("title", "in_results"),
    [("Outliers", "{} | {} to {}"), ("Stability", "{} more of the steps than V2 ({} to {}")],
)
def test_intervals_of_other_studies_are_those_of_the_results(title, in_results):
    """Which are tested against the records."""
    printed = re.findall(r"(\d\.\d\d) \((\d\.\d\d) to (\d\.\d\d)\)", row_of(title))
    assert printed
    for numbers in printed:
        assert in_results.format(*numbers) in " ".join(RESULTS.split())


def test_pairs_in_twice_the_context_absent_keys_and_shots():
    pairs, row = means("lookup", "found_6_x2"), row_of("Retrieval")
    assert f"V1 finds {pairs['diff']} of six, the Transformer {pairs['softmax']} |" in row
    assert f"finds {pairs['diff_uniform']} |" in row
    row = row_of("Hallucination")
    absent, right = means("lookup", "unsupported_6_x1"), means("many_shot", "shots_23")
    assert (
        f"absent keys answered by the Transformer {absent['softmax']}, V1 {absent['diff']}, "
        f"V2 {absent['diff_v2']}, Shared DIFF {absent['shared_diff']};"
    ) in row
    assert (
        f"accuracy with 23 shots {right['softmax']}, V1 {right['diff']}, V2 {right['diff_v2']}, "
        f"Shared DIFF {right['shared_diff']};"
    ) in row


def test_training_speed_on_a_gpu():
    table = (FINDINGS / "benchmarks.md").read_text(encoding="utf-8")
    row = re.search(
        r"^\| 3b \| 28 \| 1 × 4,096 \| bfloat16 \| forward \+ backward \|.*", table, re.M
    )
    softmax, _, *types = (
        float(cell.split("(")[0].replace(",", "")) for cell in row.group().split("|")[6:10]
    )
    v1, v2 = (f"{speed / softmax:.2f}" for speed in types)
    assert f"V1 trains at {v1} of the Transformer's speed, V2 at {v2}" in row_of("Cost")


@pytest.mark.parametrize("page", ["docs/start/choosing.md", "README.md"])
def test_the_size_of_the_study(page):
    size = f"{results_of('text')['variants']['softmax']['parameters'] / 1e6:.1f}M"
    assert set(re.findall(r"[\d.]+M(?= parameters)", (ROOT / page).read_text("utf-8"))) == {size}
