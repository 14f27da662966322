"""``bench generation``: what prefill and every further token cost a whole model, and its cache.

Each contender has the dynamic cache that ``generate`` gives it. ``prefill`` reads a context into an
empty one; ``decode`` reads one further token per row against a full one.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from diffattn.lab.benchmark.config import BenchConfig, Case
from diffattn.lab.benchmark.contender_names import FOLDED, GENERATION_CONTENDERS, T
from diffattn.lab.benchmark.contenders import Contender
from diffattn.lab.benchmark.model_check import check_model
from diffattn.lab.benchmark.models import SIZES, build
from diffattn.models.accounting import flops_per_token
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scale:
    size: str
    batches_and_contexts: tuple[tuple[int, int], ...]


_SCALES = {
    ("cpu", "quick"): _Scale(size="laptop", batches_and_contexts=((1, 128),)),
    ("cpu", "full"): _Scale(
        size="wide", batches_and_contexts=((1, 512), (1, 2_048), (4, 512), (4, 2_048))
    ),
    ("cuda", "quick"): _Scale(size="wide", batches_and_contexts=((1, 2_048),)),
    # All contenders and their caches stay on the device together.
    ("cuda", "full"): _Scale(
        size="3b", batches_and_contexts=((1, 2_048), (1, 8_192), (4, 2_048), (16, 512))
    ),
}


def plan(config: BenchConfig) -> list[Case]:
    """The cases of one call."""
    scale = _SCALES[config.device, config.scale]
    dtypes = ("bfloat16",) if config.device == "cuda" else ("float32", "bfloat16")
    batches = dict.fromkeys(batch for batch, _ in scale.batches_and_contexts)
    pairs = scale.batches_and_contexts
    if config.lengths:
        pairs = tuple((batch, length) for batch in batches for length in config.lengths)
    size = SIZES[scale.size]
    shape = {"size": scale.size, "layers": size.num_layers, "H": size.num_heads, "d": size.head_dim}
    return [
        Case(
            suite="generation",
            device=config.device,
            dtype=dtype,
            mode=mode,
            shape=shape | {"B": batch} | tokens,
        )
        for batch, context in pairs
        for dtype in config.dtypes or (dtypes if config.scale == "full" else dtypes[:1])
        for mode, tokens in (
            ("prefill", {"N": context}),
            ("decode", {"N": 1, "S": context}),
        )
    ]


def effort(case: Case) -> int:
    """Rough share of the whole work, for the time left: a decoded cache is filled first."""
    config = SIZES[case.shape["size"]].config()
    context = _context(case)
    work = flops_per_token(config, context, training=False) * case.shape["B"] * context
    return 20 + round(work * (3 if case.mode == "prefill" else 1) / 1e9)


def smallest_bytes(case: Case) -> int:
    """Bytes of one model's cache, in the smallest dtype."""
    size = SIZES[case.shape["size"]]
    width = 4 * size.num_heads * size.head_dim  # keys and values of both maps
    return 2 * case.shape["B"] * _context(case) * size.num_layers * width


def contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every model of one case, T first; all hold freshly drawn weights.

    Args:
        case: Shape ``size``, ``B`` and ``N``; to decode also ``S``, the cached tokens.
        only: Names of contenders besides T. Default: all.
    """
    names = [
        n for n, (role, *_) in GENERATION_CONTENDERS.items() if role == T or not only or n in only
    ]
    return [_contender(case, name) for name in names]


def make(config: DiffTransformerConfig, *, implementation: str, name: str) -> nn.Module:
    """A model of a contender's kind, ready to generate.

    Args:
        config: The matched configuration, before folding.
        implementation: ``attn_implementation``.
        name: Of the contender.
    """
    _, _, attention_type, whose, _ = GENERATION_CONTENDERS[name]
    model = build(config, implementation=implementation, whose=whose, attention_type=attention_type)
    if name == FOLDED:
        from diffattn.models.conversion.folding import fold_shared

        model = fold_shared(model)  # type: ignore[arg-type]
    return model.eval()


def _contender(case: Case, name: str) -> Contender:
    role, technique, attention_type, whose, implementation = GENERATION_CONTENDERS[name]
    batch, context, decodes = case.shape["B"], _context(case), case.mode == "decode"
    size = SIZES[case.shape["size"]]
    size = replace(size, lengths=(max(*size.lengths, context + 1),))
    diff = size.config()
    config = diff if attention_type == "diff" else diff.twin(attention_type).config
    model = make(config, implementation=implementation, name=name)
    model = model.to(case.device, case.torch_dtype)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(config.vocab_size, (batch, context + 1), generator=generator)
    ids = ids.to(case.device)
    with torch.no_grad():
        cache = DynamicCache(config=model.config)
        model(input_ids=ids[:, :context], past_key_values=cache, logits_to_keep=1)

    def prefill() -> Tensor:
        logits: Tensor = model(
            input_ids=ids[:, :context],
            past_key_values=DynamicCache(config=model.config),
            logits_to_keep=1,
        ).logits
        return logits

    def decode() -> Tensor:
        step = model(input_ids=ids[:, context:], past_key_values=cache, logits_to_keep=1)
        cache.crop(-1)
        logits: Tensor = step.logits
        return logits

    tokens = batch * (1 if decodes else context)
    return Contender(
        name=name,
        role=role,
        backend=implementation,
        technique=technique,
        forward=decode if decodes else prefill,
        backward=lambda _: None,
        check=lambda _: check_model(
            partial(make, name=name),
            config,
            implementation,
            whose,
            ids[:1],
            case.torch_dtype,
            cached=True,
        ),
        # A token meets half of a text on average, a decoded one all of its cache.
        flops=flops_per_token(config, 2 * context if decodes else context) * tokens,
        tokens=tokens,
        cache_bytes=_cache_bytes(cache),
    )


def _context(case: Case) -> int:
    return int(case.shape.get("S", case.shape["N"]))


def _cache_bytes(cache: DynamicCache) -> int:
    return sum(
        x.numel() * x.element_size()
        for layer in cache.layers
        for x in (layer.keys, layer.values)
        if x is not None
    )
