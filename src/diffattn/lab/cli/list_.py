"""``diffattn list``."""

import json
from typing import Annotated, Any

import typer

KINDS = ("recipes", "presets", "types", "backends", "protocols")


def list_(
    kind: Annotated[str, typer.Argument(help="recipes, presets, types, backends or protocols")],
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show what there is, by name."""
    from diffattn.models.config.known_names import check_known

    check_known("list", "kind", kind, KINDS)
    rows = {
        "recipes": _recipes,
        "presets": _presets,
        "types": _types,
        "backends": _backends,
        "protocols": _protocols,
    }[kind]()
    if json_:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    from diffattn.lab.cli.screen.tables import print_table

    print_table(rows)


def _recipes() -> list[dict[str, Any]]:
    from diffattn.lab.catalog.recipes.catalog import GROUPS

    rows = []
    named = ((group, name, make) for group in GROUPS for name, make in GROUPS[group].items())
    for group, name, make in named:
        config = make()
        documentation = getattr(make, "func", make).__doc__ or ""
        rows.append(
            {
                "recipe": name,
                "experiment": group,
                "type": config.model.attention_type,
                "steps": config.train.num_steps,
                "tokens": config.train.num_steps * config.train.batch_tokens,
                "what": documentation.strip().splitlines()[0],
            }
        )
    return rows


def _presets() -> list[dict[str, Any]]:
    """Sizes as DIFF V1, and how many parameters each matched twin has more or fewer."""
    from diffattn.models.presets import preset_table

    return [
        {
            "preset": row.name,
            "paper": row.paper_name,
            "parameters": row.total,
            "without embeddings": row.non_embedding,
            **{f"{twin} twin": residual for twin, residual in row.twin_residuals.items()},
        }
        for row in preset_table()
    ]


def _types() -> list[dict[str, Any]]:
    from diffattn.models.config.attention_types import ATTENTION

    return [
        {"type": row.name, "layer": row.layer[1], "source": row.source, "control": row.control}
        for row in ATTENTION.values()
    ]


def _backends() -> list[dict[str, Any]]:
    from diffattn.ops.inputs import backends

    return [
        {
            "backend": backend.name,
            "what": backend.summary,
            "devices": "all" if backend.devices is None else ", ".join(backend.devices),
            "dtypes": ", ".join(backend.dtypes),
            "widths": backend.widths,
            "gradient": _gradient(backend),
        }
        for backend in backends.table("diff_attention")
    ]


def _gradient(backend: Any) -> str:
    """Of which order there is a gradient, and where there is none though there is one elsewhere."""
    nowhere = backend.gradient == "none"
    return ", none on ".join([backend.gradient, *(() if nowhere else backend.no_gradient_on)])


def _protocols() -> list[dict[str, Any]]:
    """Protocols, then the presets made of them."""
    from diffattn.lab.evaluation.catalog import PRESETS, PROTOCOLS

    protocols = [
        {"protocol": name, "version": row.version, "what": row.summary, "source": row.source}
        for name, row in PROTOCOLS.items()
    ]
    presets = [
        {"protocol": name, "version": "", "what": f"preset: {', '.join(parts)}", "source": ""}
        for name, parts in PRESETS.items()
    ]
    return [*protocols, *presets]
