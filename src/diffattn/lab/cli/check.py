"""``diffattn check``."""

import json
from typing import Annotated, Any

import typer


def check(
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show which backends run here, and why others do not."""
    from diffattn.lab.benchmark import backends_here
    from diffattn.lab.records.run import hardware, package_versions

    rows, gpus = backends_here.check_backends(), backends_here.list_gpus()
    if json_:
        facts: dict[str, Any] = {"versions": package_versions(), "hardware": hardware()}
        facts |= {"gpus": gpus, "backends": rows}
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        from diffattn.lab.cli.screen.tables import print_table

        typer.echo(
            ", ".join(f"{name} {version}" for name, version in package_versions().items()) + "\n"
        )
        print_table([_shown(row) for row in rows])
        typer.echo("Largest error: float32 output and gradients against the reference in float64.")
        if gpus:
            typer.echo(
                "On cuda also bfloat16 at a training shape, against what rounding explains: "
                "output and gradients."
            )
        for gpu in gpus:
            typer.echo(
                f"{gpu['device']}, {gpu['name']}, compute capability {gpu['capability']}: "
                f"{gpu['auto']}"
            )
    if any(row["wrong"] for row in rows):
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
