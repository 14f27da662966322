"""``diffattn fit``."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError


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
    from diffattn.lab.records.losses import read_losses
    from diffattn.lab.stats.power_law import FORMS, equivalence_of, fits_of
    from diffattn.models.config.known_names import check_known

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
        typer.echo(json.dumps({"over": axis, "fits": fits, "equivalents": rows}, indent=2))
        return
    from diffattn.lab.cli.screen.tables import print_table

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
