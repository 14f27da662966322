"""A page to read every item in: the question, the answer of each model, and where they differ."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffattn.lab.report.page.render import template_text, write_page

GENERATOR = "diffattn compare"
"""Name of the command that made the page, as the page states it."""
Row = Mapping[str, Any]
MOST_BYTES = 6_000_000
"""Most bytes of all items of a page together, as JSON."""
_NOT_FIELDS = ("id", "cluster", "scores", "weights", "prompt", "error", "row")


def write_answers(
    out: Path, rows: Mapping[str, Mapping[str, Sequence[Row]]], labels: Sequence[str]
) -> Path:
    """Write the page: one HTML file that needs no network.

    ``rows``: variant -> label of a model -> rows of ``items.jsonl``, with those that failed.
    """
    share = MOST_BYTES // max(1, len(rows))
    return write_page(
        out,
        "answers.html.j2",
        script=template_text("answers.js"),
        generator=GENERATOR,
        title=f"Answers of {', '.join(labels)}",
        labels=list(labels),
        parts=[answers_of(variant, sides, labels, share) for variant, sides in rows.items()],
    )


def answers_of(
    variant: str,
    by_model: Mapping[str, Sequence[Row]],
    labels: Sequence[str],
    most_bytes: int = MOST_BYTES,
) -> dict[str, Any]:
    """Arrange a variant's scores, its items, and a sentence on items left out.

    Items whose scores differ between models come first.
    """
    present = [label for label in labels if label in by_model]
    by_id: dict[str, dict[str, Row]] = {}
    for label in present:
        for row in by_model[label]:
            by_id.setdefault(str(row["id"]), {})[label] = row
    scores = dict.fromkeys(
        name for sides in by_id.values() for row in sides.values() for name in _scores(row)
    )

    def is_equal(name: str) -> bool:
        scores = [_scores(row) for row in by_id[name].values()]
        return len(scores) > 1 and all(other == scores[0] for other in scores)

    ordered = sorted(by_id, key=is_equal)
    items: list[dict[str, Any]] = []
    size = 0
    for name in ordered:
        item = _item(name, by_id[name])
        size += len(json.dumps(item))
        if items and size > most_bytes:
            break
        items.append(item)
    return {
        "variant": variant,
        "labels": present,
        "scores": list(scores),
        "items": items,
        "summary": f"{len(items):,} of {len(ordered):,} items are shown, those with different "
        "scores first; items.jsonl has them all.",
    }


def _item(name: str, sides: Mapping[str, Row]) -> dict[str, Any]:
    """Arrange one item: a field with equal values in all models is shown once, others by model."""
    names = dict.fromkeys(key for row in sides.values() for key in row if key not in _NOT_FIELDS)
    shared = {}
    for key in names:
        values = [row.get(key) for row in sides.values() if "error" not in row]
        if values and key != "output" and all(value == values[0] for value in values):
            shared[key] = _text(values[0])
    prompts = [row["prompt"] for row in sides.values() if isinstance(row.get("prompt"), Mapping)]
    is_one_prompt = len({str(prompt.get("sha256")) for prompt in prompts}) <= 1
    item: dict[str, Any] = {"id": _text(name), "facts": shared, "models": {}}
    if prompts and is_one_prompt:
        item["prompt"] = _prompt(prompts[0])
    for label, row in sides.items():
        if "error" in row:
            item["models"][label] = {"error": _text(row["error"])}
            continue
        fields = {key: _text(row[key]) for key in names if key in row and key not in shared}
        item["models"][label] = {"scores": _scores(row), "fields": fields}
        if isinstance(row.get("prompt"), Mapping) and not is_one_prompt:
            item["models"][label]["prompt"] = _prompt(row["prompt"])
    return item


def _scores(row: Row) -> dict[str, float]:
    scores = row.get("scores")
    if not isinstance(scores, Mapping):
        return {}
    return {str(k): float(v) for k, v in scores.items() if isinstance(v, int | float)}


def _prompt(prompt: Mapping[str, Any]) -> dict[str, Any]:
    begins, ends = (_text(prompt.get(key) or "") for key in ("begins", "ends"))
    count = prompt.get("characters")
    between = count - len(begins) - len(ends) if isinstance(count, int) else 0
    return {"begins": begins, "ends": ends, "between": max(0, between) if ends else 0}


def _text(value: Any) -> str:
    """Write a value as text. A long text is cut, and the number of cut characters is added."""
    is_text = isinstance(value, str)
    text = value if is_text else json.dumps(value, ensure_ascii=False)
    most = 2_000 if is_text else 300
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
