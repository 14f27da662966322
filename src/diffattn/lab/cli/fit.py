"""``diffattn fit``."""

import csv
import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError, check_known, short
from diffattn.lab.cli.options import print_json


def fit(
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV with a header, or JSON list of objects: name, parameters or tokens, loss"
        ),
    ],
    baseline: Annotated[
        str | None, typer.Option(help="name that the others are compared with [the first]")
    ] = None,
    at: Annotated[
        float | None, typer.Option(help="size at which to compare [each size of the others]")
    ] = None,
    form: Annotated[str, typer.Option(help="offset (a x^-b + c) or kaplan (a x^-b)")] = "offset",
    extrapolate: Annotated[
        bool, typer.Option("--extrapolate", help="read fits beyond their points too")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Fit losses over parameters or tokens: who needs fewer?

    Give one row per run. Several seeds of one size count as one degree of freedom, because they
    share the error of the fit at that size. A share of 62 % means: by the fits, 62 % of the
    baseline's parameters or tokens give the baseline's loss. Its interval is of 95 %.
    """
    from diffattn.lab.stats.power_law import FORMS, equivalence_of, fits_of

    check_known("fit", "--form", form, FORMS)
    axis, groups = read_losses(file)
    base = next(iter(groups)) if baseline is None else baseline
    check_known("fit", "--baseline", base, groups)
    if at is not None and not 0 < at < float("inf"):
        raise ConfigError(f"--at: must be positive and finite, got {at}.")
    laws, fits = fits_of(groups, form=form)
    rows = [
        equivalence_of(x, name, base, laws, extrapolate=extrapolate)
        for name, points in groups.items()
        if name != base
        for x in ([at] if at is not None else sorted({x for x, _ in points}))
    ]
    if json_:
        print_json({"over": axis, "fits": fits, "equivalents": rows})
        return
    from diffattn.lab.cli.screen import print_table

    print_table([_fit_row(name, entry) for name, entry in fits.items()])
    print_table([_equivalent_row(row, axis) for row in rows])


def _fit_row(name: str, entry: dict[str, Any]) -> dict[str, str]:
    row = {"fit": name, "a": "", "b": "", "c": ""}
    for part, interval in entry["parameters"].items():
        row[part] = f"{interval['mean']:.4g}"
        if interval["low"] is not None:
            row[part] += f" ({interval['low']:.4g} to {interval['high']:.4g})"
    error = "" if entry["max_error"] is None else f"{entry['max_error']:.2g}"
    note = "" if entry["refused"] is None else f"no fit: {entry['refused']}"
    return row | {"largest error": error, "note": note}


def _equivalent_row(row: dict[str, Any], axis: str) -> dict[str, str]:
    shown = {"equal loss": row["type"], axis: f"{row['x']:.5g}", f"{row['baseline']} needs": ""}
    shown |= {"share": "", "95 % interval": "", "note": "extrapolated" * row["extrapolated"]}
    if row["refused"] is not None:
        return shown | {"note": f"no estimate: {row['refused']}"}
    shown |= {f"{row['baseline']} needs": f"{row['other_x']:.5g}"}
    shown |= {"share": f"{100 * row['ratio']:.1f} %"}
    if row["low"] is not None:
        shown["95 % interval"] = f"{100 * row['low']:.3g} to {100 * row['high']:.3g} %"
    return shown


def read_losses(path: Path) -> tuple[str, dict[str, list[tuple[float, float]]]]:
    """A user's table: ``"parameters"`` or ``"tokens"``, and name -> pairs of it and the loss."""
    from diffattn.lab.records.study_results import AXES

    rows = _rows(path)
    axes = [axis for axis in AXES if any(row.get(axis) not in (None, "") for row in rows)]
    if len(axes) != 1:
        raise ConfigError(
            f"{path}: must have a column parameters or a column tokens, got "
            f"{'both' if axes else 'neither'}."
        )
    groups: dict[str, list[tuple[float, float]]] = {}
    for index, row in enumerate(rows, start=1):
        name, where = row.get("name"), f"{path}: row {index}"
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"{where}: name must be text, got {short(name)}.")
        x, loss = (_number(where, column, row.get(column)) for column in (axes[0], "loss"))
        if x <= 0:
            raise ConfigError(f"{where}: {axes[0]} must be positive, got {x:g}.")
        groups.setdefault(name.strip(), []).append((x, loss))
    return axes[0], groups


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            rows = json.loads(text)
        else:
            rows = list(csv.DictReader(text.splitlines(), skipinitialspace=True))
    except (ValueError, RecursionError, csv.Error) as error:
        raise ConfigError(
            f"{path}: must be CSV or JSON in UTF-8, got {short(str(error))}."
        ) from None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(
            f"{path}: must be a table with columns name, parameters or tokens, loss and one row or "
            "more, got another content."
        )
    return rows


def _number(where: str, column: str, value: Any) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not abs(number) <= 1e100:  # false for NaN too
        raise ConfigError(f"{where}: {column} must be a number, got {short(value)}.")
    return number
