"""The report of a stability study, from a made-up folder."""

import re
import shutil
from dataclasses import asdict

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from diffattn.errors import CheckpointError
from diffattn.records.run import RunRecord
from diffattn.report.build import build_report, markdown_results
from diffattn.report.stability.files import METRICS, read_stability_study
from diffattn.report.stability.page import over_rates
from record_files import change_record, read_record, write_finished, write_record

TYPES, RATES, SEEDS = ("softmax", "diff"), (0.002, 0.128), (0, 1)


def summary(values):
    mean = sum(values) / len(values)
    return {"values": values, "mean": mean, "low": mean - 0.25, "high": mean + 0.25, "level": 0.95}


@pytest.fixture
def study(tmp_path):
    """Two types at two rates; one run of DIFF V1 diverged. Numbers are made up."""
    folder = tmp_path / "study"
    model = {"num_heads": 8, "head_dim": 16, "intermediate_size": 344, "hidden_size": 128}
    train = {"num_steps": 200, "batch_tokens": 1024}
    info = {"schema": 1, "kind": "stability", "created": "2001-02-03T04:05:06+00:00"}
    info |= {"scale": "study", "types": list(TYPES), "seeds": list(SEEDS), "match": "params"}
    info |= {"learning_rates": list(RATES), "config_hash": "0123"}
    info |= {"config": {"model": model, "train": train}, "data": {"source": "stdlib"}}
    write_record(folder / "study.json", info)
    types = {}
    for kind in TYPES:
        rates = []
        for rate in RATES:
            names = [f"{kind}-lr{rate:g}-seed{seed}" for seed in SEEDS]
            steps = [150 if name == "diff-lr0.128-seed1" else None for name in names]
            for name, seed, step in zip(names, SEEDS, steps, strict=True):
                record = RunRecord(
                    name=name, config={"model": model | {"attention_type": kind}, "train": train},
                    seed=seed, model={"parameters": 1000, "parameter_difference": 6},
                    created="2001-02-03T04:05:07+00:00", commit="c0ffee" * 7, dirty=False,
                    versions={"python": "3.11.7"}, hardware={"processor": "Made-up <b>chip</b>"},
                )  # fmt: skip
                write_record(folder / "runs" / name / "run.json", asdict(record))
                result = {"schema": 1, "run": name, "validation_loss": None if step else 3.5}
                write_finished(folder / "runs" / name, result, [{"step": 1, "train_loss": 6.0}])
            at = {"learning_rate": rate, "runs": names, "diverged_steps": steps}
            at |= {"diverged": [step is not None for step in steps]}
            at |= {key: summary([0.125, 0.375]) for key in METRICS if key != "sensitivity"}
            rates.append(at)
        types[kind] = {"rates": rates, "sensitivity": summary([0.5, 0.75])}
    pair = {"type": "diff", "baseline": "softmax", "p_value": 0.0123, "p_holm": 0.0456}
    differences = [
        pair | {"metric": metric, "learning_rate": rate, **summary([0.0625, 0.1875])}
        for metric, rate in (("loss", 0.128), ("loss", None), ("sensitivity", None))
    ]
    definition = {"window": 32, "deviations": 5.0, "least_loss": 0.1, "least_log_gradient": 0.6931}
    results = {"schema": 1, "kind": "stability", "statement": "Made-up <i>statement</i>."}
    results |= {"protocol": {"name": "stability_study", "version": 1}, "definition": definition}
    write_record(folder / "results.json", results | {"types": types, "differences": differences})
    return folder


def shown(folder):
    page = build_report(folder).read_text(encoding="utf-8").replace(get_plotlyjs(), "")
    body = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_the_page_shows_measures_divergence_and_definitions(study):
    text = shown(study)
    assert "What is missing" not in text
    for words in (
        "Made-up &lt;i&gt;statement&lt;/i&gt;.",
        "Made-up &lt;b&gt;chip&lt;/b&gt;",
        "1 of 2 at step 150 diff-lr0.128-seed1",
        "2 learning rates from 0.002 to 0.128, with 2 seeds",
        "exceeds the median of the 32 steps before by more than 5 robust standard deviations",
        "0.250 0.000 to 0.500",
        "DIFF V1 − Transformer (softmax) Final validation loss 0.128 +0.1250",
        "0.012 0.046",
    ):
        assert words in text, words


def test_charts_hold_every_type_and_rate(study):
    chart = over_rates(read_stability_study(study), "loss", "chart")
    assert [trace["x"] for trace in chart.traces] == 2 * [list(RATES)]
    assert chart.traces[0]["error_y"]["array"] == [0.25, 0.25]
    assert len(go.Figure(chart.figure).data) == len(TYPES)


def test_the_same_study_gives_the_same_bytes(study):
    assert build_report(study).read_bytes() == build_report(study).read_bytes()


def test_markdown(study):
    lines = markdown_results(study).splitlines()
    assert len(lines) == 2 + 4
    cells = " | ".join(["0.250 (0.000 to 0.500)"] * 4)
    assert lines[-1] == f"| DIFF V1 | 0.128 | 1 of 2 | {cells} |"


def test_what_is_missing_or_contradicts_is_named(study):
    result = study / "runs" / "diff-lr0.128-seed1" / "results.json"
    write_record(result, read_record(result) | {"validation_loss": 3.0})
    assert "diff-lr0.128-seed1 met a number that is not finite, but" in shown(study)
    shutil.rmtree(study / "runs" / "softmax-lr0.002-seed0")
    (study / "results.json").unlink()
    text = shown(study)
    assert "Run softmax-lr0.002-seed0 was not found." in text
    assert "results.json is missing" in text
    assert "nothing is counted yet" in text


def test_results_of_other_rates_or_lengths_are_refused(study):
    change_record(study / "study.json", learning_rates=[0.002])
    with pytest.raises(CheckpointError, match="must hold softmax at the rates of study"):
        build_report(study)
    change_record(study / "study.json", learning_rates=list(RATES))
    results = read_record(study / "results.json")
    results["types"]["diff"]["rates"][0]["loss"]["values"].pop()
    write_record(study / "results.json", results)
    with pytest.raises(CheckpointError, match="diff must hold one entry per run"):
        build_report(study)
