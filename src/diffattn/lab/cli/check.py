"""``diffattn check``."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from diffattn.lab.cli.options import print_json


def check(
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    layer: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="compare a layer of yours with the published one"),
    ] = None,
) -> None:
    """Check which backends run here, or a layer for known mistakes."""
    if layer is not None:
        _check_layer(layer, json_)
        return
    from diffattn.lab.benchmark import backends_here
    from diffattn.lab.cli.screen import print_table
    from diffattn.lab.records.run import hardware, package_versions

    rows, gpus = backends_here.check_backends(), backends_here.list_gpus()
    if json_:
        facts: dict[str, Any] = {"versions": package_versions(), "hardware": hardware()}
        print_json(facts | {"gpus": gpus, "backends": rows})
    else:
        versions = [f"{name} {version}" for name, version in package_versions().items()]
        typer.echo(f"{', '.join(versions)}\n")
        print_table([_shown(row) for row in rows])
        typer.echo("Largest error: float32 output and gradients against the reference in float64.")
        if gpus:
            typer.echo(
                "On cuda also bfloat16 at a training shape: output and gradients, within the bound "
                "on rounding errors."
            )
        for gpu in gpus:
            typer.echo(
                f"{gpu['device']}, {gpu['name']}, compute capability {gpu['capability']}: "
                f"{gpu['auto']}"
            )
    if any(row["wrong"] for row in rows):
        raise typer.Exit(1)


def _check_layer(path: str, json_: bool) -> None:
    from diffattn.lab.layer_check.calling import load_layer
    from diffattn.lab.layer_check.compare import check_layer

    report = check_layer(load_layer(path))
    if json_:
        print_json(asdict(report) | {"right": report.right})
    else:
        typer.echo(
            f"{report.made}: {report.attention_type}, {report.num_heads} heads, queries of "
            f"{report.head_dim}, values of {report.value_dim}, layout: {report.layout}."
        )
        for name, text in report.mistakes.items():
            typer.echo(f"{name}: {text}")
        if not report.explained:
            typer.echo(
                f"No formula gives its output: off by {report.difference:.1e} from the published "
                f"one, by {report.remaining:.1e} from the nearest with known mistakes."
            )
        elif report.right:
            typer.echo(f"Right: off by {report.difference:.1e}, which is rounding.")
        else:
            typer.echo(
                f"Off by {report.difference:.1e} from the published formula, and by "
                f"{report.remaining:.1e} if the formula makes these mistakes too."
            )
    if not report.right:
        raise typer.Exit(1)


def _shown(row: dict[str, Any]) -> dict[str, str]:
    right = "right" if row["gradient"] else "right; no gradient"
    training = row["training"]
    if training is not None and not training["passed"]:
        wrong = f"wrong in bfloat16: {training['worst']} of {training['compared']}"
    elif row["why_not"]:
        wrong = f"failed: {row['why_not']}"
    else:
        wrong = "wrong"
    return {
        "backend": row["backend"],
        "device": row["device"],
        "runs": "yes" if row["runs"] else "no",
        "largest error": "" if row["error"] is None else f"{row['error']:.1e}",
        "verdict": wrong if row["wrong"] else row["why_not"] or right,
    }
