"""``diffattn list``."""

from typing import Annotated, Any

import typer

from diffattn.lab.cli.options import print_json

_Listed = tuple[list[dict[str, Any]], dict[str, Any]]
"""Rows for JSON; and for the screen, title to the lines below it."""


def _recipes() -> _Listed:
    from diffattn.lab.catalog.recipes.catalog import GROUPS, TITLES
    from diffattn.models.twins import parameter_count

    rows: list[dict[str, Any]] = []
    named = ((group, name, make) for group in GROUPS for name, make in GROUPS[group].items())
    for group, name, make in named:
        plan = make()
        rows.append(
            {
                "recipe": name,
                "experiment": group,
                "type": plan.model.attention_type,
                "parameters": parameter_count(plan.model),
                "steps": plan.train.num_steps,
                "tokens": plan.train.num_steps * plan.train.batch_tokens,
                "what": plan.summary,
            }
        )
    groups: dict[str, Any] = {}
    for row in rows:
        title = TITLES.get(row["experiment"], TITLES["laptop"])
        counts = (_count(row["parameters"]), f"{_count(row['tokens'])} tokens")
        groups.setdefault(title, []).append((row["recipe"], *counts, row["what"]))
    return rows, groups


def _presets() -> _Listed:
    """Sizes of DIFF V1 models, and how many parameters more or fewer each twin has."""
    from diffattn.models.presets import preset_settings, preset_table

    rows, lines = preset_table(), []
    for row in rows:
        model = preset_settings(row["preset"])
        shape = f"{model.num_hidden_layers} layers of {model.hidden_size:,}"
        counts = (_count(row["parameters"]), f"{_count(row['without embeddings'])} without")
        lines.append((row["preset"], *counts, f"{shape}, {model.num_heads} heads"))
    title = "Models with DIFF V1: parameters, those without embeddings, and shape"
    return rows, {title: lines}


def _types() -> _Listed:
    from diffattn.models.config.attention_types import ATTENTION

    rows = [
        {"type": row.name, "layer": row.layer[1], "source": row.source, "control": row.control}
        for row in ATTENTION.values()
    ]
    return rows, {
        "Types of the papers": [
            (row["type"], row["layer"], row["source"]) for row in rows if not row["control"]
        ],
        "Controls, and types with one part changed": [
            (row["type"], row["control"]) for row in rows if row["control"]
        ],
    }


def _backends() -> _Listed:
    from diffattn.ops.inputs import backends

    rows = [
        {
            "backend": backend.name,
            "what": backend.summary,
            "devices": "all" if backend.devices is None else ", ".join(backend.devices),
            "dtypes": ", ".join(backend.dtypes),
            "widths": backend.widths,
            "gradient": ", none on ".join(
                [backend.gradient, *(backend.no_gradient_on if backend.gradient != "none" else ())]
            ),
        }
        for backend in backends.table("diff_attention")
    ]
    lines = [(row["backend"], row["devices"], row["what"]) for row in rows]
    return rows, {"Name, devices, method; 'diffattn check' says which run here": lines}


def _protocols() -> _Listed:
    from diffattn.lab.evaluation.catalog import PRESETS, PROTOCOLS

    rows = [
        {"protocol": name, "version": row.version, "what": row.summary, "source": row.source}
        for name, row in PROTOCOLS.items()
    ]
    presets = [
        {"protocol": name, "version": "", "what": f"preset: {', '.join(parts)}", "source": ""}
        for name, parts in PRESETS.items()
    ]
    return [*rows, *presets], {
        "Protocols": [(row["protocol"], row["what"]) for row in rows],
        "The papers' tables and figures": [(n, ", ".join(parts)) for n, parts in PRESETS.items()],
    }


def _count(number: float) -> str:
    """A count with a unit, for example ``"1.41B"`` or ``"0.886M"``."""
    unit, size = ("B", 1e9) if number >= 1e9 else ("M", 1e6) if number >= 1e5 else ("K", 1e3)
    return f"{number / size:.3g}{unit}"


KINDS = {
    "recipes": ("training runs, for 'diffattn train' and 'plan'", _recipes),
    "presets": ("sizes of the papers' models, for 'diffattn plan'", _presets),
    "types": ("attention types and controls, for --attention", _types),
    "backends": ("implementations of differential attention", _backends),
    "protocols": ("questions and tests, for 'diffattn evaluate'", _protocols),
}


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help=f"{', '.join(list(KINDS)[:-1])} or protocols [shows these kinds]"),
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="print JSON, which has more about each")
    ] = False,
) -> None:
    """List recipes, presets, attention types, backends or protocols."""
    from diffattn.errors import check_known
    from diffattn.lab.cli.screen import print_groups

    if kind is None:
        lines = [(name, summary) for name, (summary, _) in KINDS.items()]
        rows = [{"kind": name, "summary": summary} for name, summary in lines]
        groups: dict[str, Any] = {"diffattn list KIND, where KIND is:": lines}
    else:
        check_known("list", "kind", kind, KINDS)
        rows, groups = KINDS[kind][1]()
    if json_:
        print_json(rows)
    else:
        print_groups(groups)
