"""``bench models`` and ``bench generation``: whole models with equal numbers of parameters.

``models`` times the forward pass, and forward with backward. In ``generation`` each model has the
dynamic cache of ``generate``: ``prefill`` reads a context into an empty cache, ``decode`` reads
one more token per row with a full cache.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from diffattn.lab.benchmark.config import (
    DIFFATTN,
    FOLDED,
    MODEL_CONTENDERS,
    BenchConfig,
    Case,
    T,
    contender_names,
)
from diffattn.lab.benchmark.contenders import Contender
from diffattn.lab.testing.assertions import compare, measured_errors
from diffattn.models import presets
from diffattn.models.attention.cached_attention import chosen_backend
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.our_model import fold_shared
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.models.twins import flops_per_token

CHECKED_LAYERS = 2


def check_model(
    make: Callable[..., nn.Module],
    config: DiffTransformerConfig,
    implementation: str,
    whose: str,
    ids: Tensor,
    dtype: torch.dtype,
    gradients: bool = False,
    *,
    cached: bool = False,
) -> dict[str, Any]:
    r"""Compare logits, and the gradient of the embedding, with the eager model in float64.

    .. math:: \|x - x_{64}\| \le 2\,(\|x_\mathrm{eager} - x_{64}\| + \epsilon \|x_{64}\|)

    The eager error is the larger of two runs whose weights are moved by up to one rounding. With
    ``cached`` only the last token's logits are compared, computed with a cache. The result is that
    of :meth:`diffattn.lab.benchmark.checking.Exact.check`, for the largest share of a budget.
    """
    # In 16 bits, rounding in a whole new model would hide a λ or scores of 0.
    dtypes = [dtype] if dtype.itemsize > 2 else [dtype, torch.float32]
    actual = expected = partial(_run, ids=ids, gradients=gradients)
    if cached:
        actual, expected = (partial(_last, ids=ids, cached=cached) for cached in (True, False))
    config = deepcopy(config)
    config.num_hidden_layers = min(CHECKED_LAYERS, config.num_hidden_layers)
    eager = deepcopy(config)
    eager.attention_backend = "reference"
    has_op = (whose, config.attention.op) == ("diffattn", "diff_attention")
    eager_form = "diffattn" if has_op else "eager"

    def build(config: DiffTransformerConfig, form: str, dtype: torch.dtype) -> nn.Module:
        with ids.device:  # draw the weights on this device
            model = make(config, implementation=form)
        return model.to(ids.device, dtype)

    worst: dict[str, Any] = {}
    most = -1.0
    for each in dtypes:
        results = actual(build(config, implementation, each))
        exact = expected(build(eager, eager_form, each).double())
        reference = build(eager, eager_form, each)
        off = measured_errors(expected, reference, exact, num_runs=2, size=_norm)
        for name, want in exact.items():
            result = compare(results[name], want, off[name], size=_norm)
            if result.share > most:
                most, size = result.share, _norm(want)
                worst = {"passed": result.problem is None, "worst": name}
                worst |= {"error": result.error / size, "budget": result.budget / size}
    words = f"{config.num_hidden_layers} layers, {ids.shape[1]} tokens, in norm"
    names = " and ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    return worst | {"compared": words + (f", in {names}" if len(dtypes) > 1 else "")}


def _run(model: nn.Module, ids: Tensor, gradients: bool) -> dict[str, Tensor]:
    with torch.set_grad_enabled(gradients):
        out = model(input_ids=ids, labels=ids, use_cache=False)
    values = {"logits": out.logits.detach()}
    if gradients:
        embedding: Any = model.get_input_embeddings().weight  # type: ignore[operator]
        (grad,) = torch.autograd.grad(out.loss, (embedding,))
        values["gradient of the embedding"] = grad
    return values


@torch.no_grad()
def _last(model: nn.Module, ids: Tensor, cached: bool) -> dict[str, Tensor]:
    options: dict[str, Any] = {"use_cache": False}
    if cached:
        options = {"past_key_values": DynamicCache(config=model.config)}
        model(input_ids=ids[:, :-1], logits_to_keep=1, **options)
        ids = ids[:, -1:]
    return {"logits of the last token": model(input_ids=ids, logits_to_keep=1, **options).logits}


def _norm(x: Tensor) -> float:
    return float(x.double().norm())


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of a DIFF V1 model. Models of other types are its twins of equal size."""

    hidden_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    vocab_size: int
    batch: int
    lengths: tuple[int, ...]

    def config(self) -> DiffTransformerConfig:
        """Of the DIFF V1 model."""
        return DiffTransformerConfig(
            attention_type="diff",
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_layers,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            max_position_embeddings=max(self.lengths),
        )


def _paper_size(name: str, num_layers: int) -> ModelSize:
    config = presets.preset_settings(name)
    heads, lengths = (config.num_heads, config.head_dim), (2_048, 4_096)
    return ModelSize(config.hidden_size, num_layers, *heads, config.vocab_size, 1, lengths)


SIZES = {
    "laptop": ModelSize(128, 4, 4, 16, 1_024, 4, (256,)),
    # The models of the first published study.
    "study": ModelSize(256, 4, 8, 16, 2_048, 4, (256,)),
    "wide": ModelSize(512, 4, 4, 64, 2_048, 1, (1_024, 2_048)),
    # All contenders are on the device together, so 13B has only 10 of its 40 layers.
    "3b": _paper_size("3b", 28),
    "13.1b": _paper_size("13.1b", 10),
}
CUT = {"3b": (2, 6), "13.1b": (1, 3), "laptop": (1, 2)}
"""Two depths of a size. Their difference in time is that of layers, without embedding and loss."""
SIZES |= {
    f"{name}-{depth}-layers": replace(SIZES[name], num_layers=depth)
    for name, depths in CUT.items()
    for depth in depths
}
_SIZES_OF_SCALE = {
    ("cpu", "quick"): ("laptop",),
    ("cpu", "full"): ("laptop", "study", "wide"),
    ("cuda", "quick"): ("study", "wide"),
    ("cuda", "full"): ("3b", "13.1b"),
    ("cpu", "cut"): tuple(f"laptop-{depth}-layers" for depth in CUT["laptop"]),
    ("cuda", "cut"): tuple(f"{n}-{depth}-layers" for n in ("3b", "13.1b") for depth in CUT[n]),
}
_GENERATION = {
    ("cpu", "quick"): ("laptop", ((1, 128),)),
    ("cpu", "full"): ("wide", ((1, 512), (1, 2_048), (4, 512), (4, 2_048))),
    ("cuda", "quick"): ("wide", ((1, 2_048),)),
    # All contenders and their caches are on the device together.
    ("cuda", "full"): ("3b", ((1, 2_048), (1, 8_192), (4, 2_048), (16, 512))),
}
"""(device, scale) to a size, and pairs of a batch size and a context in tokens."""
_SAME_FIELDS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
    *("max_position_embeddings", "tie_word_embeddings", "rms_norm_eps"),
)
"""Fields that transformers' configurations and ours have in common."""


def shapes(config: BenchConfig) -> list[dict[str, dict[str, Any]]]:
    """The shapes of one call of the benchmark: for each, mode to shape."""
    scale, lengths = (config.device, config.scale), config.lengths
    if config.suite == "models":
        return [
            dict.fromkeys(
                ("forward", "forward_backward"),
                _shape(name) | {"B": SIZES[name].batch, "N": length},
            )
            for name in _SIZES_OF_SCALE[scale]
            for length in lengths or SIZES[name].lengths
        ]
    name, pairs = _GENERATION[scale]
    if lengths:
        pairs = tuple((batch, n) for batch in dict.fromkeys(b for b, _ in pairs) for n in lengths)
    return [
        {
            "prefill": _shape(name) | {"B": batch, "N": context},
            "decode": _shape(name) | {"B": batch, "N": 1, "S": context},
        }
        for batch, context in pairs
    ]


def _shape(name: str) -> dict[str, Any]:
    size = SIZES[name]
    return {"size": name, "layers": size.num_layers, "H": size.num_heads, "d": size.head_dim}


def smallest_bytes(case: Case) -> int:
    """Bytes of one model's logits, or in generation of its cache, in a 16-bit dtype."""
    size, tokens = SIZES[case.shape["size"]], case.shape["B"] * _context(case)
    if case.suite == "models":
        return int(2 * tokens * size.vocab_size)
    # Keys of both maps, and values twice as wide.
    return int(2 * tokens * size.num_layers * 4 * size.num_heads * size.head_dim)


def contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every model of one case, T first, with random weights, or T and ``only`` these."""
    make = _trained if case.suite == "models" else _generating
    return [
        make(case, name)
        for name in contender_names(case.suite)
        if MODEL_CONTENDERS[name][0] == T or not only or name in only
    ]


def model_config(case: Case, attention_type: str) -> DiffTransformerConfig:
    """The configuration of one attention type with as many parameters as DIFF V1."""
    size = SIZES[case.shape["size"]]
    if case.suite == "generation":
        size = replace(size, lengths=(max(*size.lengths, _context(case) + 1),))
    diff = size.config()
    return diff if attention_type == "diff" else diff.twin(attention_type).config


def _trained(case: Case, name: str) -> Contender:
    role, technique, attention_type, whose, implementation = MODEL_CONTENDERS[name]
    config = model_config(case, attention_type)
    make = partial(build, name=name)
    with torch.device(case.device):  # a GPU draws billions of weights quickly
        model = make(config, implementation=implementation)
    model = model.to(case.device, case.torch_dtype)
    if isinstance(model, DiffTransformerForCausalLM):
        model.skips_logits = True  # as in training
    ids = _draw_ids(case, config, case.shape["N"])

    def backward(loss: Tensor) -> None:
        loss.backward()
        model.zero_grad(set_to_none=True)

    check = partial(check_model, make, config, implementation, whose)
    backend = implementation
    if implementation == "diffattn":  # as the model itself would choose it
        call: dict[str, Any] = {"batch": case.shape["B"], "num_tokens": case.shape["N"]}
        backend = chosen_backend(config, device=case.device, dtype=case.torch_dtype, **call)
    training = case.mode != "forward"
    return Contender(
        name=name,
        role=role,
        backend=backend,
        technique=technique,
        forward=lambda: model(input_ids=ids, labels=ids, use_cache=False).loss,
        backward=backward,
        check=_once_on_gpu(case, name, config, check, ids[:1]),
        flops=flops_per_token(config, case.shape["N"], training=training) * ids.numel(),
        tokens=ids.numel(),
    )


_CHECKED: dict[tuple[Any, ...], dict[str, Any]] = {}
"""Results of this process: (name, dtype, layers, widths) to the check."""


def _once_on_gpu(
    case: Case,
    name: str,
    config: DiffTransformerConfig,
    check: Callable[..., dict[str, Any]],
    ids: Tensor,
) -> Callable[[bool], dict[str, Any]]:
    """The check of a model: on a CPU of every case, on a GPU, where time is short, only once per
    widths, layers and dtype, with gradients, at the shortest of the size's lengths."""
    if case.device == "cpu":
        return partial(check, ids, case.torch_dtype)
    layers = min(CHECKED_LAYERS, config.num_hidden_layers)
    widths = (config.hidden_size, config.num_heads, config.head_dim, config.vocab_size)
    key = (name, case.dtype, layers, widths)
    shortest = min(SIZES[case.shape["size"]].lengths)

    def once(_: bool) -> dict[str, Any]:
        if key not in _CHECKED:
            _CHECKED[key] = check(ids[:, :shortest], case.torch_dtype, True)
        return dict(_CHECKED[key])

    return once


def build(
    config: DiffTransformerConfig, *, implementation: str, name: str, trains: bool = True
) -> nn.Module:
    """Our model, or transformers' Llama or DiffLlama of its size; ``config`` is before folding."""
    _, _, attention_type, whose, _ = MODEL_CONTENDERS[name]
    torch.manual_seed(0)
    if whose == DIFFATTN:
        config._attn_implementation = implementation
        model = DiffTransformerForCausalLM(config)
        return (fold_shared(model) if name == FOLDED else model).train(trains)
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM

    heads = config.num_heads * ATTENTION[attention_type].softmax_heads("heads")
    values = {name: getattr(config, name) for name in _SAME_FIELDS} | {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": implementation,
    }
    if attention_type == "softmax":
        return LlamaForCausalLM(LlamaConfig(**values)).train(trains)
    return DiffLlamaForCausalLM(DiffLlamaConfig(**values)).train(trains)


def _generating(case: Case, name: str) -> Contender:
    role, technique, attention_type, whose, implementation = MODEL_CONTENDERS[name]
    context, decodes = _context(case), case.mode == "decode"
    config = model_config(case, attention_type)
    make = partial(build, name=name, trains=False)
    model = make(config, implementation=implementation).to(case.device, case.torch_dtype)
    ids = _draw_ids(case, config, context + 1)

    def read(tokens: Tensor, cache: DynamicCache) -> Tensor:
        return model(input_ids=tokens, past_key_values=cache, logits_to_keep=1).logits

    def prefill() -> Tensor:
        return read(ids[:, :context], DynamicCache(config=model.config))

    def decode() -> Tensor:
        logits = read(ids[:, context:], cache)
        cache.crop(-1)
        return logits

    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        read(ids[:, :context], cache)
    tokens = case.shape["B"] * (1 if decodes else context)
    check = (make, config, implementation, whose, ids[:1], case.torch_dtype)
    return Contender(
        name=name,
        role=role,
        backend=implementation,
        technique=technique,
        forward=decode if decodes else prefill,
        backward=lambda _: None,
        check=lambda _: check_model(*check, cached=True),
        # A token of a text sees half of it on average, a decoded token the whole cache.
        flops=flops_per_token(config, 2 * context if decodes else context) * tokens,
        tokens=tokens,
        cache_bytes=sum(
            x.nbytes for layer in cache.layers for x in (layer.keys, layer.values) if x is not None
        ),
    )


def _draw_ids(case: Case, config: DiffTransformerConfig, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(config.vocab_size, (case.shape["B"], length), generator=generator)
    return ids.to(case.device)


def _context(case: Case) -> int:
    return int(case.shape.get("S", case.shape["N"]))
