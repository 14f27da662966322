"""``diffattn generate``."""

from typing import Annotated

import typer

from diffattn.lab.cli.options import DTYPES, AutoDtypeOption, DeviceOption, VerifyOption

_TEMPERATURES = (1e-3, 1e3)
"""Smaller is as 0, larger is uniform; far beyond either, the logits overflow."""
_Prompt = Annotated[str, typer.Option(help="text to continue")]
_Temperature = Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token")]


def generate(
    model: Annotated[str, typer.Argument(help="run directory, model folder or hub name")],
    prompt: _Prompt,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="length of the continuation")] = 64,
    temperature: _Temperature = 0.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="of the sampling")] = 0,
    device: DeviceOption = None,
    dtype: AutoDtypeOption = "auto",
    verify: VerifyOption = True,
) -> None:
    """Continue a text; tokens appear as they are made."""
    from diffattn.errors import ConfigError
    from diffattn.lab.data.files import normalise_line_ends
    from diffattn.models.checkpoint_folder import checkpoint_folder
    from diffattn.models.config.known_names import check_known
    from diffattn.models.config.numbers import LARGEST_COUNT

    least, most = _TEMPERATURES
    if temperature and not least <= temperature <= most:
        raise ConfigError(
            f"generate: --temperature must be finite: 0, or from {least:g} to {most:g}, "
            f"got {temperature}."
        )
    if max_new_tokens > LARGEST_COUNT:
        raise ConfigError(
            f"generate: --max-new-tokens must be at most {LARGEST_COUNT}, got {max_new_tokens}."
        )
    check_known("generate", "dtype", dtype, ("auto", *DTYPES))
    checkpoint_folder(model)
    from diffattn.lab.inference.streaming import stream_text  # loads PyTorch

    stream_text(
        model,
        normalise_line_ends(prompt),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        device=device,
        dtype=dtype,
        verify=verify,
    )
