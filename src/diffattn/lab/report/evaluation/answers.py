"""A page to read every item in: what was asked, what each model answered, where they differ."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffattn.lab.report.page.render import template_text, write_page

GENERATOR = "diffattn compare"
"""What the page says made it."""
Row = Mapping[str, Any]
MOST_BYTES = 6_000_000
"""Of all items of a page together, as JSON."""
_MOST_ITEMS = 5_000
"""Per protocol."""
_TEXT = 2_000
"""Characters of one text."""
_NUMBERS = 300
"""Characters of a list or the like."""
_APART = ("id", "cluster", "scores", "weights", "prompt", "error", "row")


def write_answers(
    out: Path, rows: Mapping[str, Mapping[str, Sequence[Row]]], labels: Sequence[str]
) -> Path:
    """Write the page: one HTML file that needs no network.

    Args:
        out: File to write.
        rows: By variant and model, as in ``items.jsonl``; failed ones too.
        labels: Models, the baseline first.

    Raises:
        ConfigError: ``out`` is no file and cannot become one.
    """
    data = answers_data(rows, labels)
    return write_page(
        out, "answers.html.j2", script=template_text("answers.js"), generator=GENERATOR,
        title=f"Answers of {', '.join(labels)}", labels=list(labels), parts=data,
    )  # fmt: skip


def answers_data(
    rows: Mapping[str, Mapping[str, Sequence[Row]]],
    labels: Sequence[str],
    most_bytes: int = MOST_BYTES,
) -> list[dict[str, Any]]:
    """One entry per variant: its scores, its items, and what was left out for size.

    Items in which the models' scores differ come before the others, so that what is left out is
    what says least.

    Args:
        rows: See :func:`write_answers`.
        labels: Models.
        most_bytes: Of all items together; every variant has an equal share of it.
    """
    share = most_bytes // max(1, len(rows))
    return [_part(variant, of, labels, share) for variant, of in rows.items()]


def _part(
    variant: str, of: Mapping[str, Sequence[Row]], labels: Sequence[str], most_bytes: int
) -> dict[str, Any]:
    present = [label for label in labels if label in of]
    by_id: dict[str, dict[str, Row]] = {}
    for label in present:
        for row in of[label]:
            by_id.setdefault(str(row["id"]), {})[label] = row
    scores = list(
        dict.fromkeys(
            name for sides in by_id.values() for row in sides.values() for name in _scores(row)
        )
    )
    ordered = sorted(by_id, key=lambda name: not _differs(by_id[name].values()))
    items: list[dict[str, Any]] = []
    size = 0
    for name in ordered[:_MOST_ITEMS]:
        item = _item(name, by_id[name], present)
        size += len(json.dumps(item))
        if items and size > most_bytes:
            break
        items.append(item)
    left_out = len(ordered) - len(items)
    said = (
        f"{len(items):,} of {len(ordered):,} items are shown, those with different scores first; "
        f"{left_out:,} are left out to keep the page small. items.jsonl has them all."
    )
    return {
        "variant": variant, "labels": present, "scores": scores, "items": items,
        "said": said if left_out else f"{len(items):,} items.",
    }  # fmt: skip


def _item(name: str, sides: Mapping[str, Row], labels: Sequence[str]) -> dict[str, Any]:
    """What all models were given stands once, the rest by model."""
    fields = list(dict.fromkeys(key for row in sides.values() for key in row if key not in _APART))
    shared = {}
    for key in fields:
        values = [row.get(key) for row in sides.values() if "error" not in row]
        if values and key != "output" and all(value == values[0] for value in values):
            shared[key] = _text(values[0])
    prompts = [row["prompt"] for row in sides.values() if isinstance(row.get("prompt"), Mapping)]
    same = len({str(prompt.get("sha256")) for prompt in prompts}) <= 1
    item: dict[str, Any] = {"id": _text(name), "facts": shared, "models": {}}
    if prompts and same:
        item["prompt"] = _prompt(prompts[0])
    for label in labels:
        row = sides.get(label)
        if row is None:
            continue
        if "error" in row:
            item["models"][label] = {"error": _text(row["error"])}
            continue
        own = {key: _text(row[key]) for key in fields if key in row and key not in shared}
        item["models"][label] = {"scores": _scores(row), "fields": own}
        if isinstance(row.get("prompt"), Mapping) and not same:
            item["models"][label]["prompt"] = _prompt(row["prompt"])
    return item


def _scores(row: Row) -> dict[str, float]:
    scores = row.get("scores")
    if not isinstance(scores, Mapping):
        return {}
    return {str(k): float(v) for k, v in scores.items() if isinstance(v, int | float)}


def _differs(sides: Iterable[Row]) -> bool:
    every = [_scores(row) for row in sides]
    return len(every) < 2 or any(other != every[0] for other in every[1:])


def _prompt(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """An excerpt, and how many characters lie between its two parts."""
    begins, ends = (_text(prompt.get(key) or "") for key in ("begins", "ends"))
    count = prompt.get("characters")
    between = count - len(begins) - len(ends) if isinstance(count, int) else 0
    return {"begins": begins, "ends": ends, "between": max(0, between) if ends else 0}


def _text(value: Any) -> str:
    """A value as text, cut where it is long, and said so."""
    if isinstance(value, str):
        text, most = value, _TEXT
    else:
        text, most = json.dumps(value, ensure_ascii=False), _NUMBERS
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
