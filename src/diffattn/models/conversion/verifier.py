"""Check that converted files compute the same logits as their source.

Both are run on random tokens by their code in transformers, with one block in memory at a time. In
float64 their difference may be about twice the rounding error of the source in a narrower dtype.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from diffattn.layers.saved_names import saved_name
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.source import LazyTensor, Source
from diffattn.models.conversion.target import Written
from diffattn.models.loading import quiet

_ROWS, _TOKENS = 2, 16


@dataclass(frozen=True, slots=True)
class Verification:
    """Comparison of logits on random tokens, in float64."""

    tokens: int
    largest_logit: float
    difference: float
    """Largest difference between source and result."""
    rounding: float
    """Largest difference between the source in float64 and in ``dtype``. ``difference`` may be
    2 (``rounding`` + ε ``largest_logit``), ε the machine epsilon of ``dtype``."""
    dtype: str


def verify_logits(
    source: Source,
    result: Source,
    config: DiffTransformerConfig,
    written: Written,
    on_progress: Callable[[str], None],
) -> Verification | None:
    """Compare the logits of two sets of files; ``None`` if transformers cannot compute both.

    If the conversion rounded weights, rounding errors of their dtype are allowed, else those of
    float32.
    """
    if not (source.layout.has_code and result.layout.has_code):
        return None
    first = next(iter(result.tensors.values()))
    narrow = first.dtype if written.rounded and first.dtype != torch.float64 else torch.float32
    generator = torch.Generator().manual_seed(0)
    tokens = min(_TOKENS, config.max_position_embeddings)
    ids = torch.randint(config.vocab_size, (_ROWS, tokens), generator=generator)
    on_progress("logits of the source")
    exact = compute_logits(source, ids, torch.float64)
    on_progress("logits of the source, rounded")
    rounding = (compute_logits(source, ids, narrow).double() - exact).abs().max()
    on_progress("logits of the result")
    converted = compute_logits(result, ids, torch.float64)
    if not bool(converted.isfinite().all() and exact.isfinite().all()):
        raise source.error("logits of source and result must be finite", "NaN or infinity")
    largest = exact.abs().max()
    difference = float((converted - exact).abs().max())
    budget = 2 * float(rounding + torch.finfo(narrow).eps * largest)
    if written.preserved and difference > budget:
        must = f"the result must have the source's logits (the largest is {float(largest):.3g})"
        got = f"a difference of {difference:.3g} where rounding explains {budget:.3g}"
        raise source.error(must, got)
    return Verification(
        tokens=ids.numel(),
        largest_logit=float(largest),
        difference=difference,
        rounding=float(rounding),
        dtype=str(narrow).removeprefix("torch."),
    )


@torch.no_grad()
def compute_logits(source: Source, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Logits ``[B, T, vocab_size]`` of files for ``ids`` ``[B, T]``, computed in ``dtype``."""
    config: Any = AutoConfig.from_pretrained(source.folder, trust_remote_code=False)
    with quiet(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    # Rotary tables are built from the configuration; parameters come from the files.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    model = model.to(dtype).eval()
    outside_blocks = ("model.embed_tokens", "model.norm", "lm_head")
    for name, module in model.named_modules():
        if name in outside_blocks or type(module).__name__ in model._no_split_modules:
            _load_while_running(name, module, source.tensors)
    return model(ids, use_cache=False).logits


def _load_while_running(name: str, module: nn.Module, tensors: Mapping[str, LazyTensor]) -> None:
    def load(*_: Any) -> None:
        state = {}
        for part, parameter in module.named_parameters():
            saved = saved_name(f"{name}.{part}")
            if saved == "lm_head.weight" and saved not in tensors:  # it is the embedding
                saved = "model.embed_tokens.weight"
            state[part] = tensors[saved].load().to(parameter.dtype)
        module.load_state_dict(state, assign=True)

    def drop(*_: Any) -> None:
        module.to("meta")

    module.register_forward_pre_hook(load)
    module.register_forward_hook(drop)
