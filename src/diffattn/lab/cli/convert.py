"""``diffattn convert``."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import check_known
from diffattn.lab.cli.options import VerifyOption, default_out, print_json, say, set_option

_SETTABLE = (
    "rope_theta", "rope_parameters", "rms_norm_eps", "max_position_embeddings", "head_norm",
    "head_norm_eps", "lambda_init", "shared_rank", "pad_token_id", "bos_token_id", "eos_token_id",
)  # fmt: skip
_To = Annotated[
    str,
    typer.Option(
        help="diffattn, diffllama or original; of a softmax model diff_v2, dex, diff, shared_diff "
        "or a control: gated_head, gated_element"
    ),
]


def convert(
    source: Annotated[str, typer.Argument(help="model folder, run directory or .safetensors file")],
    to: _To,
    out: Annotated[
        Path | None,
        typer.Option(help="new model folder, written whole or not at all [runs/TO-SOURCE]"),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", help="layout of SOURCE [found from its config.json or tensor names]"
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, set_option("a setting, e.g. rope_theta=10000 (repeatable)")
    ] = None,
    verify: VerifyOption = True,
    json_: Annotated[bool, typer.Option("--json", help="print what was done as JSON")] = False,
) -> None:
    """Write a model in another layout, or make it differential.

    Layouts: this package's, Hugging Face DiffLlama, the original code's V1 and V2, Motif. Softmax
    models: Llama, Mistral, Qwen2, Qwen3 and ours. If transformers can run both layouts, their
    logits on random tokens are compared before the folder is written.

    A softmax model becomes diff_v2 or dex without a change of its output. Continue its training by
    'diffattn train RECIPE --init-from OUT --same-model'. V1 and Shared DIFF normalise heads, which
    softmax models do not: the output changes unless --set head_norm=false. For adapters (peft)
    choose target_modules q_proj and o_proj, and modules_to_save lambda_proj.
    """
    from diffattn.lab.inference.named_models import best_of_study
    from diffattn.lab.records.fields import read_settings
    from diffattn.models.conversion.layouts import LAYOUTS, TARGETS

    check_known("convert", "--to", to, TARGETS)
    if from_ is not None:
        check_known("convert", "--from", from_, LAYOUTS)
    changes = read_settings(set_ or [], dict.fromkeys(_SETTABLE, Any))
    source = best_of_study(source, say)
    out = out or default_out(to, [Path(source).name.removesuffix(".safetensors")])
    from diffattn.lab.cli.screen import ByteProgress
    from diffattn.models.conversion.convert import convert as run

    with ByteProgress("writing") as progress:
        write = partial(run, on_message=progress.on_message, on_progress=progress.on_progress)
        done = write(source, to, out, layout=from_, changes=changes, verify=verify)
    if json_:
        print_json(asdict(done))
    else:
        typer.echo(_summary(done, to, out))


def _summary(done: Any, to: str, out: Path) -> str:
    first = f"{done.layout} to {to}: {done.tensors} tensors in {out}"
    if (check := done.verification) is None:
        return f"{first}\nLogits were not compared: transformers can run only one of the layouts."
    compared = (
        f"Logits on {check.tokens} random tokens differ by {check.difference:.2g} of up to "
        f"{check.largest_logit:.2g}"
    )
    verdict = f"; rounding to {check.dtype} alone gives {check.rounding:.2g}."
    if not done.preserved:
        verdict = ": the head norm changes the output of a softmax model. --set head_norm=false "
        verdict += "keeps it."
    return f"{first}\n{compared}{verdict}"
