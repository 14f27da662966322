"""An evaluation folder of made-up numbers: two models, a headline, heat maps and lines."""

from pathlib import Path
from typing import Any

from diffattn.files.io import write_json
from diffattn.lab.records.evaluations import EVAL_SCHEMA_VERSION, Comparison, EvalResult, Metric
from diffattn.lab.records.run import RunRecord
from evaluation_folders import eval_result, paired


def write_evaluation(folder: Path, **of_loss: Any) -> None:
    """Write it; a third model has no result."""
    models = {"one": "softmax", "two": "diff"}
    marker = {"schema": EVAL_SCHEMA_VERSION, "kind": "evaluation folder"}
    marker |= {"models": [*models, "three"], "variants": ["needle"]}
    write_json(folder / "evaluation.json", marker)
    for index, (label, kind) in enumerate(models.items()):
        part = folder / label / "needle"
        _result(label, kind, 0.1 * index, **of_loss).write(part)
        config = {"protocol": "needle", "parameters": {"samples": 3}}
        RunRecord(name=f"{label}/needle", config=config, seed=0).write(part)
    difference = paired(
        model="two", baseline="one", difference=0.1, low=-0.1, high=0.3, method="bootstrap",
        p_value=0.4, test="McNemar, exact",
    )  # fmt: skip
    skipped = ["needle: three was not compared: three has no result of needle."]
    Comparison(baseline="one", differences=[difference], skipped=skipped).write(folder)


def _result(label: str, kind: str, shift: float, **of_loss: Any) -> EvalResult:
    metrics = [Metric(name="recall", value=0.5 + shift, n=50, low=0.4, high=0.9, headline=True)]
    for i in (1, 2, 3):
        for depth in (0, 50):
            where: dict[str, Any] = {"length": 2**i, "depth": depth}
            value = 0.1 * i + depth / 500 + shift
            metrics.append(Metric(name="recall", value=value, n=10, where=where))
    for i in (1, 2, 3):
        where = {"task": "a", "length": 4**i}
        value = 1.0 / i + shift
        metrics.append(Metric(name="loss", value=value, n=10, unit="nats", where=where, **of_loss))
    model = {"label": label, "attention_type": kind, "parameters": 1000, "path": "<b>x</b>"}
    model |= {"weights": "0123", "vocabulary": "4567", "dtype": "float32", "device": "cpu"}
    return eval_result(
        "needle", source="a paper", model=model, parameters={"samples": 3}, metrics=metrics,
        choices={"prompt": "completion & more"}, tables={"by_depth": [0.5]}, num_items=12,
        num_failed=2, items={"rows": 12, "sha256": "0"},
    )  # fmt: skip
