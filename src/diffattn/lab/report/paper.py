"""Published numbers and claims that a report shows beside measured ones, with their charts."""

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from diffattn.lab.report.page.charts import Chart, layout, line
from diffattn.lab.report.page.tables import Table, table
from diffattn.lab.report.page.wording import number

_DATA_SETS = {
    "trec": "TREC",
    "trec_fine": "TREC-fine",
    "banking77": "Banking-77",
    "clinic150": "Clinic-150",
}
_TYPES = ("softmax", "diff")
"""Names of the models in the rows of a table, Transformer and DIFF; the names give colours."""


class Throughput(NamedTuple):
    """Tokens per second on H100 GPUs, as printed."""

    transformer: int
    diff: int


THROUGHPUT_SOURCE = "arXiv:2410.05258v2, Table 7"


@cache
def throughput() -> dict[tuple[str, int, str], Throughput]:
    """Preset, tokens per sequence and mode -> the speeds that the paper prints."""
    train, train_diff, read, read_diff = (row[1:] for row in published_tables()["throughput"].rows)
    places = (("3b", 2_048), ("3b", 4_096), ("13.1b", 2_048))
    pairs = {"forward_backward": (train, train_diff), "forward": (read, read_diff)}
    return {
        (*place, mode): Throughput(*speeds)
        for mode, pair in pairs.items()
        for place, speeds in zip(places, zip(*pair, strict=True), strict=True)
    }


def many_shot_curves() -> dict[str, dict[str, list[int]]]:
    """Data set of ``many_shot`` -> ``shots``, and accuracy in percent: ``transformer``, ``diff``.

    Source: arXiv:2410.05258v2, Fig. 6.
    """
    return dict(_published("in_context_learning.json")["many_shot"])


class ScalingCurves(NamedTuple):
    """Losses of Transformer (``softmax``) and DIFF (``diff``), as plotted."""

    unit: str
    x: list[float]
    losses: dict[str, list[float]]
    curves: dict[str, list[float]]
    """Model -> a, b and c of the plotted curve a x^-b + c."""
    read_at: list[float]
    """The x of DIFF for which the paper says how much more the Transformer needs."""

    def points(self) -> dict[str, list[tuple[float, float]]]:
        """The plotted points of both models."""
        return {kind: list(zip(self.x, y, strict=True)) for kind, y in self.losses.items()}


def scaling_curves() -> dict[str, ScalingCurves]:
    """Losses over ``"parameters"`` and over ``"tokens"``.

    Source: arXiv:2410.05258v2, Fig. 3.
    """
    recorded = _published("scaling.json")
    return {axis: ScalingCurves(**recorded[axis]) for axis in ("parameters", "tokens")}


class PublishedTable(NamedTuple):
    """Numbers as printed, or as read from a figure."""

    source: str
    caption: str
    """The quantity, with its unit."""
    digits: int
    columns: list[str]
    """Headers. The first header belongs to the names of the rows."""
    rows: list[list[Any]]
    """Each row is a name and then numbers."""
    names: Sequence[str] = ()
    """Names of the rows' models in our studies; empty if no study trains them."""


@cache
def published_tables() -> dict[str, PublishedTable]:
    """Our name -> table or figure of the first paper, except those of the functions above.

    Source: arXiv:2410.05258v2; figures read from its vector graphics.
    """
    return {name: PublishedTable(**values) for name, values in _published("tables.json").items()}


class PaperResult(NamedTuple):
    """One table or figure of a paper."""

    id: str
    title: str
    source: str
    says: str
    """The result of the paper in a sentence or two, with its scale."""
    claims: Sequence[dict[str, Any]]
    """``id``, unique; ``source``; ``says``: the paper's statement, with its number as printed;
    ``effect``: the quantity that tests it, in words, with its unit."""
    tables: Sequence[str] = ()
    remark: str = ""
    """A fact that a reader needs to judge the result."""


@cache
def paper_results() -> list[PaperResult]:
    """The tables and figures of the papers in their order, each with the claims drawn from it."""
    return [PaperResult(**result) for result in _published("papers.json")]


def table_6() -> dict[str, float]:
    """Name of a variant in our studies -> validation loss of a 1.4B model after 10B tokens.

    Source: arXiv:2410.05258v2, Table 6.
    """
    printed = published_tables()["ablations"]
    return {name: row[1] for name, row in zip(printed.names, printed.rows, strict=True)}


def _published(name: str) -> Any:
    path = resources.files("diffattn.lab.report") / "published" / name
    return json.loads(path.read_text(encoding="utf-8"))


def published_table(name: str) -> Table:
    """Show a table of the paper as printed."""
    printed = published_tables()[name]
    rows = [[row[0], *(number(value, printed.digits) for value in row[1:])] for row in printed.rows]
    return table(f"Published. {printed.caption} {printed.source}.", printed.columns, rows)


def published_charts(result: str) -> list[Chart]:
    """Draw the figures whose numbers stand in no table, by a result of the papers."""
    if result in ("size", "tokens"):
        return [_scaling_chart("parameters" if result == "size" else "tokens")]
    return list(map(_many_shot_chart, _DATA_SETS)) if result == "many-shot" else []


def _scaling_chart(axis: str) -> Chart:
    curves = scaling_curves()[axis]
    grid = np.geomspace(min(curves.x), max(curves.x), 60)
    traces = []
    for name in _TYPES:
        a, b, c = curves.curves[name]
        fit = [(float(x), float(a * x**-b + c)) for x in grid]
        points = curves.points()[name]
        traces += [
            line(fit, name, "published fit", where="%{x:.2f}") | {"mode": "lines"},
            line(points, name, "published", where="%{x}")
            | {"mode": "markers", "showlegend": False},
        ]
    return Chart(
        element_id=f"published-{axis}",
        traces=traces,
        look=layout(curves.unit, "loss, nats per token", xaxis={"type": "log"}),
        caption=f"Published. Loss over {axis}. arXiv:2410.05258v2, Fig. 3.",
    )


def _many_shot_chart(name: str) -> Chart:
    curve = many_shot_curves()[name]
    traces = [
        line(list(zip(curve["shots"], curve[key], strict=True)), kind, where="%{x} examples")
        for kind, key in zip(_TYPES, ("transformer", "diff"), strict=True)
    ]
    return Chart(
        element_id=f"published-many-shot-{name}",
        traces=traces,
        look=layout("examples", "accuracy, %"),
        caption=f"Published. {_DATA_SETS[name]}. arXiv:2410.05258v2, Fig. 6.",
    )
