"""``diffattn generate``."""

from typing import Annotated

import typer

from diffattn.lab.cli.options import DTYPES, AutoDtypeOption, DeviceOption, VerifyOption

_TEMPERATURES = (1e-3, 1e3)
"""Smaller is as 0, larger is uniform; far beyond either, the logits overflow."""


def generate(
    model: Annotated[str, typer.Argument(help="run directory, model folder or hub name")],
    prompt: Annotated[str, typer.Option(help="text to continue")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="length of the continuation")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token")] = 0.0,
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

    prompt = normalise_line_ends(prompt)
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

    import torch  # after everything that needs no model is known to be right
    from transformers import LogitsProcessorList, TextStreamer, set_seed

    from diffattn.models.loading import end_tokens, load_model, usable_device
    from diffattn.probes.finite import require_finite_logits

    where = usable_device(device)
    network, tokenizer = load_model(
        model, verify=verify, dtype=None if dtype == "auto" else getattr(torch, dtype)
    )
    network.to(where)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    length = inputs["input_ids"].shape[1]
    limit = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    if length == 0:
        raise ConfigError("generate: --prompt must hold one token or more, got none.")
    known, largest = len(network.get_input_embeddings().weight), int(inputs["input_ids"].max())
    if largest >= known:
        raise ConfigError(
            f"generate: tokens of --prompt must be below the model's {known}, got {largest}: the "
            "tokenizer belongs to another model."
        )
    if limit is not None and length + max_new_tokens > limit:
        raise ConfigError(
            f"generate: prompt and continuation must fit the model's {limit} tokens, "
            f"got {length} + {max_new_tokens}."
        )

    def sound(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        require_finite_logits(model, logits, network)
        return logits

    set_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {}
    network.generate(
        **inputs.to(network.device),
        max_new_tokens=max_new_tokens,
        logits_processor=LogitsProcessorList([sound]),
        streamer=TextStreamer(tokenizer, skip_special_tokens=True),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=end_tokens(network, tokenizer) or None,
        **({"do_sample": False} | sampling),
    )
