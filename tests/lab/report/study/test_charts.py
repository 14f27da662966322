"""Charts of the page, from a made-up study folder."""

import json

import numpy as np
import pytest

from diffattn.lab.report.page.wording import type_name
from lab.report.made_up_study import TYPES
from lab.report.page_reader import build, figures, outline_of
from record_files import change_record, read_record, write_record


def test_charts_hold_the_recorded_numbers(make_study):
    study = make_study(seeds=(0, 1), variants=(*TYPES, "none"), num_steps=100)
    charts = figures(build(study))
    assert len(charts) == 1 + 2 + 3 + 1 + 10
    rows = (study / "runs/diff-seed1/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [json.loads(row).get("validation_loss") for row in rows]
    traces = charts["chart-loss"]["data"]
    thin = [t for t in traces if t["legendgroup"] == "diff" and not t["showlegend"]]
    assert thin[1]["y"] == [round(x, 6) for x in losses if x is not None]
    shown = [t["name"] for t in traces if t["showlegend"]]
    assert shown[:5] == [type_name(name) for name in (*TYPES, "none")]
    assert shown[5:] == ["Unigram 5.99", "Bigram 4.11", "Bigram + copy 3.54"]
    counted = read_record(study / "results.json")["count_models"]
    assert [t["y"][0] for t in traces[-3:]] == [entry["loss"] for entry in counted.values()]
    part = charts["chart-copying"]["data"]
    assert part[-1]["y"][0] == counted["bigram_copy"]["parts"]["repeated_bigram"]
    parts = [json.loads(row).get("validation_parts") for row in rows]
    (curve,) = (t for t in part if t["legendgroup"] == "diff" and t["showlegend"])
    other = (study / "runs/diff-seed0/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = zip(parts, (json.loads(row).get("validation_parts") for row in other), strict=True)
    means = [(a["repeated_bigram"] + b["repeated_bigram"]) / 2 for a, b in pairs if a]
    assert curve["y"] == pytest.approx(means, abs=1e-6)
    maps = read_record(study / "maps.json")["layers"]["diff"]
    signed = charts["map-1-d"]["data"][0]
    assert signed["z"] == np.round(maps["difference"], 3).tolist()
    assert signed["zmin"] == -signed["zmax"]
    first, second = charts["map-1-a1"]["data"][0], charts["map-1-a2"]["data"][0]
    assert (first["zmin"], first["zmax"]) == (0, second["zmax"])


def test_lines_of_count_models_are_of_the_windows_of_the_curves(make_study):
    study = make_study(num_steps=10)
    config, data = (read_record(study / "study.json")[key] for key in ("config", "data"))
    config["train"]["evaluation_tokens"] = 100
    change_record(study / "study.json", config=config, data=data | {"validation_tokens": 1_000})
    counted = read_record(study / "results.json")["count_models"]
    for entry in counted.values():
        entry["curve"] = {"loss": entry["loss"] - 0.5}
    change_record(study / "results.json", count_models=counted)
    page = build(study)
    traces = figures(page)["chart-loss"]["data"]
    losses = [of["curve"]["loss"] for of in counted.values()]
    assert [t["y"][0] for t in traces[-3:]] == pytest.approx(losses)
    text = " ".join(outline_of(page).text)
    assert "Curves are of 100 validation tokens, tables of all 1,000." in text


def test_differences_stand_at_their_means(make_study):
    study = make_study(seeds=(0, 1), num_steps=10)
    results = read_record(study / "results.json")
    means = {"diff": -0.03, "diff_v2": 0.02}
    for entry in results["differences"]:
        mean = means.get(entry["variant"], 0.5)
        entry |= {"mean": mean, "low": mean - 0.01, "high": mean + 0.04}
    write_record(study / "results.json", results)
    chart = figures(build(study))["chart-differences"]
    singles, marks = chart["data"][::2], chart["data"][1::2]
    rows = {name: row for row, name in enumerate(chart["layout"]["yaxis"]["ticktext"])}
    for name, mean in means.items():
        row = rows[type_name(name)]
        assert singles[row]["y"] == [row, row]
        assert (marks[row]["x"], marks[row]["y"]) == ([mean], [row])
        assert marks[row]["error_x"]["arrayminus"] == pytest.approx([0.01])
        assert marks[row]["error_x"]["array"] == pytest.approx([0.04])


def test_charts_show_text_from_files_as_it_is(make_study):
    """Names of runs reach the hover text; quotes, which plotly would not decode, stay."""
    name = '<i><b>"a\'s" & b'
    study = make_study(seeds=(0,), num_steps=10, variants=("softmax",))
    run = (study / "runs/softmax-seed0").rename(study / "runs" / f"{name}-seed0")
    change_record(run / "run.json", name="</b><b>")
    change_record(study / "study.json", variants=[name])
    variants = read_record(study / "results.json")["variants"]
    change_record(study / "results.json", variants={name: variants["softmax"]})
    page = build(study)
    assert "</b><b>" not in page
    assert "<i><b>" not in page
    traces = figures(page)["chart-loss"]["data"]
    shown = '&lt;i&gt;&lt;b&gt;"a\'s" &amp; b'
    hover = traces[0]["hovertemplate"]
    assert hover == f"{shown}, {shown}-seed0<br>step %{{x:,}}: %{{y:.4f}}<extra></extra>"
    outline_of(page)
