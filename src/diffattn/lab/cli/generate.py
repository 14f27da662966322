"""``diffattn generate``."""

from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError, check_known
from diffattn.lab.cli.options import DTYPES, AutoDtypeOption, DeviceOption, VerifyOption, say


def generate(
    model: Annotated[str, typer.Argument(help="run directory, study, model folder or hub name")],
    prompt: Annotated[str | None, typer.Option(help="text to continue [an example]")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="tokens to generate [64, or as many as fit]")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="of the sampling; 0 takes the most likely token")
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="sample among this many most likely tokens")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="sample among the tokens of this total probability"),
    ] = None,
    repetition_penalty: Annotated[
        float, typer.Option(min=0.1, help="above 1: tokens of the text so far get less likely")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="of the random sampling")] = 0,
    device: DeviceOption = None,
    dtype: AutoDtypeOption = "auto",
    verify: VerifyOption = True,
) -> None:
    """Continue a text. Each token is shown as soon as it is generated."""
    from diffattn.lab.data.files import normalise_line_ends
    from diffattn.lab.inference.named_models import best_of_study, require_model

    check_known("generate", "dtype", dtype, ("auto", *DTYPES))
    _check_sampling(temperature, top_k, top_p)
    # Keyword arguments of transformers' generate.
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "repetition_penalty": repetition_penalty,
        "do_sample": bool(temperature),
    }
    if temperature:
        settings |= {"temperature": temperature, "top_k": top_k or 0}
        settings["top_p"] = 1.0 if top_p is None else top_p
    model = best_of_study(model, say)
    require_model(model)
    from diffattn.lab.inference.streaming import stream_text  # loads PyTorch

    stream_text(
        model,
        None if prompt is None else normalise_line_ends(prompt),
        settings,
        seed=seed,
        device=device,
        dtype=dtype,
        verify=verify,
        on_message=say,
    )


def _check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    least, most = 1e-3, 1e3  # far outside of this range, logits overflow
    if temperature and not least <= temperature <= most:
        raise ConfigError(
            f"generate: --temperature must be finite: 0, or from {least:g} to {most:g}, "
            f"got {temperature}."
        )
    if not temperature and (top_k is not None or top_p is not None):
        raise ConfigError("generate: --top-k and --top-p need --temperature above 0, such as 0.8.")
