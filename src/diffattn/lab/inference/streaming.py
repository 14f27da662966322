"""Continue a text and print its tokens as they are made."""

from typing import Any

import torch
from transformers import LogitsProcessorList, TextStreamer, set_seed

from diffattn.errors import ConfigError
from diffattn.models.loading import end_tokens, load_model, usable_device
from diffattn.probes.finite import require_finite_logits


def stream_text(
    model: str,
    prompt: str,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    device: str | None = None,
    dtype: str = "auto",
    verify: bool = True,
) -> None:
    """Write the continuation of a prompt to standard output; temperature 0: likeliest tokens.

    Raises:
        ConfigError: The prompt is empty, of another tokenizer, or too long for the model.
    """
    where = usable_device(device)
    network, tokenizer = load_model(
        model, verify=verify, dtype=None if dtype == "auto" else getattr(torch, dtype)
    )
    network.to(where)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    _require_prompt(network, inputs, max_new_tokens)

    def check(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        require_finite_logits(model, logits, network)
        return logits

    set_seed(seed)
    network.generate(
        **inputs.to(network.device),
        max_new_tokens=max_new_tokens,
        logits_processor=LogitsProcessorList([check]),
        streamer=TextStreamer(tokenizer, skip_special_tokens=True),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=end_tokens(network, tokenizer) or None,
        do_sample=bool(temperature),
        **({"temperature": temperature} if temperature else {}),
    )


def _require_prompt(network: Any, inputs: Any, max_new_tokens: int) -> None:
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
