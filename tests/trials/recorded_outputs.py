"""An evaluation folder with two outputs to be judged."""

from pathlib import Path

from diffattn.files.io import log_facts, write_json, write_jsonl
from diffattn.lab.records.evaluations import EVAL_SCHEMA_VERSION
from evaluation_folders import eval_result


def write_outputs(folder: Path) -> Path:
    """Write it."""
    part = folder / "model" / "hallucination"
    rows = [
        {"id": f"item-{i}", "kind": "summary", "document": "A cat sat.", "references": ["Cat."],
         "output": f"A cat {i}.", "read": 1, "scores": {}}
        for i in range(2)
    ]  # fmt: skip
    write_jsonl(part / "items.jsonl", rows)
    facts = log_facts(part / "items.jsonl")
    eval_result("hallucination", model={"label": "model"}, num_items=2, items=facts).write(part)
    write_json(
        folder / "evaluation.json",
        {"schema": EVAL_SCHEMA_VERSION, "kind": "evaluation folder", "models": ["model"],
         "variants": ["hallucination"]},
    )  # fmt: skip
    return folder
