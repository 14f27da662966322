"""Continue a text and print its tokens as they are generated."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import LogitsProcessorList, TextStreamer, set_seed

from diffattn.errors import ConfigError
from diffattn.models.loading import (
    bfloat16_advice,
    end_tokens,
    known_tokens,
    load_model,
    usable_device,
)
from diffattn.probes.passes import require_finite_logits


def stream_text(
    model: str,
    prompt: str | None,
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    device: str | None = None,
    dtype: str = "auto",
    verify: bool = True,
    on_message: Callable[[str], None] = lambda line: None,
) -> None:
    """Write the continuation of a prompt, or of an example, to standard output.

    ``settings`` are keyword arguments of transformers' ``generate``. Without ``max_new_tokens`` at
    most 64 tokens are written.
    """
    where = usable_device(device)
    network, tokenizer = load_model(
        model, verify=verify, dtype=None if dtype == "auto" else getattr(torch, dtype)
    )
    network.to(where)
    if advice := bfloat16_advice(where, network.dtype, "--dtype float32"):
        on_message(advice)
    if prompt is None:
        prompt = tokenizer.init_kwargs.get("example", "Return the")
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    max_new_tokens = _require_prompt(network, inputs, settings.get("max_new_tokens"))

    def check(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        require_finite_logits(model, logits, network)
        return logits

    set_seed(seed)
    network.generate(
        **inputs.to(network.device),
        **{**settings, "max_new_tokens": max_new_tokens},
        logits_processor=LogitsProcessorList([check]),
        streamer=TextStreamer(tokenizer, skip_special_tokens=True),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=end_tokens(network, tokenizer) or None,
    )
    if "example" in tokenizer.init_kwargs:
        on_message("The first word is the answer to the last key. No word after it was trained.")
    elif (size := network.num_parameters()) < 100_000_000:
        on_message(f"A model of {size:,} parameters babbles: it knows words, not facts.")


def _require_prompt(network: Any, inputs: Any, wanted: int | None) -> int:
    """The length of the continuation: ``wanted``, else the default, or less if it does not fit."""
    length = inputs["input_ids"].shape[1]
    limit = getattr(network.config.get_text_config(), "max_position_embeddings", None) or 2**30
    new = wanted or max(1, min(64, limit - length))
    if length == 0:
        raise ConfigError("generate: --prompt must hold one token or more, got none.")
    known, largest = known_tokens(network), int(inputs["input_ids"].max())
    if largest >= known:
        raise ConfigError(
            f"generate: tokens of --prompt must be below the model's {known}, got {largest}: the "
            "tokenizer belongs to another model."
        )
    if length + new > limit:
        raise ConfigError(
            f"generate: prompt and continuation must fit the model's {limit} tokens, "
            f"got {length} + {new}."
        )
    return new
