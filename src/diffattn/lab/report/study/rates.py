"""Learning rates: what the sweep tried and what it chose."""

import re
from typing import Any

from diffattn.lab.report.page.charts import Chart, layout, names_of
from diffattn.lab.report.page.elements import Text
from diffattn.lab.report.page.tables import Table, number_cell, table, type_cell, word_cell
from diffattn.lab.report.page.wording import MISSING, count, listing, number, type_color, type_name
from diffattn.lab.report.study.files import TextStudy
from diffattn.lab.report.study.names import rate_name
from diffattn.lab.report.study.summary import COMPARED, variants_of


def rates_section(study: TextStudy, element_id: str) -> dict[str, Any] | None:
    """The sweep as ``lead``, ``warnings``, ``chart`` and ``table``; ``None`` if there was none."""
    swept = _swept(study)
    if not swept:
        return None
    recorded = _recorded(study)
    where = [f"seed {recorded['sweep_seed']}"] if recorded.get("sweep_seed") is not None else []
    if recorded.get("sweep_steps") is not None:
        where.append(f"{count(recorded['sweep_steps'])} steps")
    taken = "the rate with the lowest validation loss was taken"
    if any(entry.get("whole") for entry in swept.values()):
        taken = (
            "those with the lowest validation losses again with all steps; of these the best was "
            "taken"
        )
    lead = (
        f"Each of these models was first trained at several rates{_in_brackets(where)}, and "
        f"{taken}. The other variants use the rate of the "
        f"model they are compared with. The common rate, {rate_name(recorded['common'])}, is that "
        f"of the {type_name('softmax')}."
    )
    edge = [name for name, entry in swept.items() if entry.get("inside") is False]
    warnings = []
    if edge:
        warnings.append(
            f"The chosen rate of {listing(map(type_name, edge))} lies at the edge of what was "
            "tried: a better one may lie outside."
        )
    return {
        "lead": lead,
        "warnings": warnings,
        "chart": _chart(study, swept, element_id),
        "table": _table(swept),
    }


def _recorded(study: TextStudy) -> dict[str, Any]:
    return dict((study.results or {}).get("rates") or {"variants": {}})


def _swept(study: TextStudy) -> dict[str, dict[str, Any]]:
    """Variants with tries of their own, in the order shown."""
    recorded = _recorded(study)["variants"]
    return {name: recorded[name] for name in study.variants if recorded.get(name, {}).get("tried")}


def _in_brackets(words: list[str]) -> str:
    return f" ({', '.join(words)})" if words else ""


def _chart(study: TextStudy, swept: dict[str, dict[str, Any]], element_id: str) -> Chart | Text:
    traces = [
        trace
        for name, entry in swept.items()
        for key in ("tried", "whole")
        if (trace := _trace(name, entry, key)) is not None
    ]
    if not traces:
        return Text("No run of the sweep ended with a loss.", "gap")
    used = [run for trace in traces for run in trace["text"]]
    rates = sorted({rate for trace in traces for rate in trace["x"]})
    axis = {"type": "log", "tickmode": "array", "tickvals": rates}
    axis["ticktext"] = [rate_name(rate) for rate in rates]
    caption = "Validation loss against the learning rate. Star: the chosen one."
    if any(entry.get("whole") for entry in swept.values()):
        caption += " Dotted: with all steps."
    return Chart(
        element_id=element_id,
        traces=traces,
        look=layout("learning rate (log scale)", "validation loss, nats per token", xaxis=axis),
        caption=caption,
        runs=names_of(dict.fromkeys(re.sub("-lr.+-", "-lr*-", run) for run in used)),
        height=400,
        label="Validation loss against the learning rate, one line per model; the table gives "
        "the numbers",
        buttons=_views(study, traces),
    )


def _trace(name: str, entry: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Short runs of one model, or those of all steps; ``None`` if none ended with a loss."""
    tries = sorted(
        (one["learning_rate"], one["validation_loss"], one["run"])
        for one in entry.get(key, ())
        if one["validation_loss"] is not None and one["learning_rate"] > 0
    )
    if not tries:
        return None
    decides = _decides(entry, key)
    chosen = [decides and rate == entry["best"] for rate, _, _ in tries]
    color = type_color(name)
    return {
        "type": "scatter",
        "x": [rate for rate, _, _ in tries],
        "y": [loss for _, loss, _ in tries],
        "name": type_name(name),
        "legendgroup": name,
        "showlegend": key == "tried",
        "mode": "lines+markers",
        "line": {"color": color, "width": 2, "dash": "dot" if key == "whole" else "solid"},
        "marker": {
            "color": color,
            "size": [14 if one else 7 for one in chosen],
            "symbol": ["star" if one else "circle" for one in chosen],
        },
        "text": [run for _, _, run in tries],
        "hovertemplate": ["%{text}", "rate %{x}: %{y:.4f}"],
    }


def _decides(entry: dict[str, Any], key: str) -> bool:
    """Whether the rate was chosen by these runs: by those of all steps where there are any."""
    return key == "whole" or not entry.get("whole")


def _views(study: TextStudy, traces: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A view of the types alone, whose losses lie close together."""
    every = variants_of(study)
    compared = {type_name(name) for name, variant in every.items() if variant.role in COMPARED}
    close = [y for trace in traces if trace["name"] in compared for y in trace["y"]]
    if not close or len(compared) >= len(traces):
        return {}
    margin = 0.05 * (max(close) - min(close)) or 0.01
    return {
        "All": {"yaxis.autorange": True},
        "Types alone": {"yaxis.range": [min(close) - margin, max(close) + margin]},
    }


def _table(swept: dict[str, dict[str, Any]]) -> Table:
    """One row per model, and below it one of its runs of all steps."""
    rates = sorted({one["learning_rate"] for entry in swept.values() for one in entry["tried"]})
    rows = []
    for name, entry in swept.items():
        for key in ("tried", "whole"):
            by_rate = {one["learning_rate"]: one for one in entry.get(key, ())}
            if not by_rate:
                continue
            decides = _decides(entry, key)
            cells = [type_cell(name), word_cell("all" if key == "whole" else "sweep")]
            for rate in rates:
                one = by_rate.get(rate)
                if one is None:
                    cells.append(number_cell(MISSING))
                    continue
                note = "chosen" if decides and rate == entry["best"] else ""
                loss = one["validation_loss"]
                shown = "diverged" if loss is None else number(loss)
                cells.append(number_cell(shown, [one["run"]], note=note))
            rows.append(cells)
    headers = ["Model", "Steps", *map(rate_name, rates)]
    return table("Validation loss at every rate tried, nats per token.", headers, rows)
