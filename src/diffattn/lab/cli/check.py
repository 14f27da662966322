"""``diffattn check``."""

import json
from typing import Annotated, Any

import typer

TRAINING_SHAPE: dict[str, Any] = {
    "batch": 1, "num_queries": 2048, "num_heads": 8, "num_kv_heads": 8, "head_dim": 128,
    "value_dim": 256, "lam_axes": "bth",
}  # fmt: skip
"""What every backend computes in bfloat16 on a GPU: one sequence of a layer of 2,048 channels."""


def check(
    json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show which backends run here, and why others do not."""
    from diffattn.lab.records.run import hardware, package_versions

    rows, gpus = _backends(), _gpus()
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


def _gpus() -> list[dict[str, str]]:
    """Every GPU here, and whether ``auto`` chooses kernels on it."""
    import torch

    from diffattn.ops.inputs import kernel_support

    gpus = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        capability = kernel_support.compute_capability(device)
        if capability is not None:
            gpus.append(
                {
                    "device": str(device),
                    "name": torch.cuda.get_device_name(device),
                    "capability": kernel_support.dotted(capability),
                    "auto": kernel_support.auto_says(capability),
                }
            )
    return gpus


def _backends() -> list[dict[str, Any]]:
    """Try every backend on every device here, with its gradient if it has one, on a small input."""
    import torch

    from diffattn.errors import BackendError
    from diffattn.lab.benchmark.checking import error_line
    from diffattn.ops.attention import diff_attention
    from diffattn.ops.inputs import backends

    rows_by_name = {row.name: row for row in backends.table("diff_attention")}

    def run(dtype: torch.dtype, device: str, backend: str) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = ((2, 16, 4, 2, 64), (2, 64, 2, 2, 64), (2, 64, 2, 128), (4,))
        q, k, v, lam = (
            torch.randn(shape, generator=generator, dtype=torch.float64)
            .to(device, torch.float32 if dtype != torch.float64 and shape == (4,) else dtype)
            .requires_grad_()
            for shape in shapes
        )
        differentiable = device not in rows_by_name[backend].no_gradient_on
        with torch.set_grad_enabled(differentiable):
            out = diff_attention(q, k, v, lam, backend=backend)
        gradients: tuple[torch.Tensor, ...] = ()
        if differentiable:
            gradients = torch.autograd.grad(out.square().sum(), (q, k, v, lam))
        return [x.detach().double().cpu() for x in (out, *gradients)]

    exact = run(torch.float64, "cpu", "reference")
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    rows = []
    for name in backends.names("diff_attention"):
        for device in devices:
            differentiable = device not in rows_by_name[name].no_gradient_on
            error, why_not, failed = None, "", False
            try:
                measured = run(torch.float32, device, name)
                error = max(
                    float((a - b).abs().max() / b.abs().max())
                    for a, b in zip(measured, exact[: len(measured)], strict=True)
                )
            except BackendError as refusal:
                # The sentence in the middle: the row names the backend, the table the others.
                why_not = str(refusal).split(f"{name!r} ", 1)[-1].split(". Usable here")[0]
            except Exception as failure:  # a compiler's or a driver's: what this command is for
                why_not, failed = error_line(failure), True
            training = None
            try:
                if device != "cpu" and not failed:
                    training = _at_training_shape(name, device, differentiable)
            except Exception as failure:
                why_not, failed = error_line(failure), True
            rows.append(
                {
                    "backend": name,
                    "device": device,
                    "runs": error is not None or training is not None,
                    "error": error,
                    "training": training,
                    "gradient": differentiable,
                    "why_not": "" if training is not None else why_not,
                    "wrong": failed
                    or (error is not None and not error < 1e-4)
                    or (training is not None and not training["passed"]),
                }
            )
    return rows


def _at_training_shape(name: str, device: str, gradients: bool) -> dict[str, Any] | None:
    """bfloat16 against the reference in float64, by rows; ``None`` where it does not run."""
    from functools import partial

    import torch

    from diffattn.errors import BackendError
    from diffattn.lab.benchmark.checking import check_diff
    from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
    from diffattn.ops.attention import diff_attention

    case = OpCase(name="training", **TRAINING_SHAPE)
    inputs = make_diff_attention_inputs(case, dtype=torch.bfloat16, device=device)
    call = partial(diff_attention, inputs.q, inputs.k, inputs.v, inputs.lam, backend=name)
    try:
        return check_diff(call, inputs, gradients)
    except BackendError:
        return None  # the small input says why
