"""``bench models``: whole models, matched in parameters, forward and forward with backward."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.lab.benchmark.config import BenchConfig, Case
from diffattn.lab.benchmark.contender_names import DIFFATTN, MODEL_CONTENDERS, T
from diffattn.lab.benchmark.contenders import Contender
from diffattn.lab.benchmark.model_check import CHECKED_LAYERS, check_model
from diffattn.models import presets
from diffattn.models.accounting import flops_per_token
from diffattn.models.attention.cached_attention import chosen_backend
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """A DIFF V1 model; the others are its twins. Small sizes are those of our recipes."""

    hidden_size: int
    num_layers: int
    num_heads: int
    head_dim: int
    vocab_size: int
    batch: int
    lengths: tuple[int, ...]

    def config(self) -> DiffTransformerConfig:
        """As DIFF V1."""
        return DiffTransformerConfig(
            attention_type="diff",
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_layers,
            num_heads=self.num_heads,
            head_dim=self.head_dim,
            max_position_embeddings=max(self.lengths),
        )


def _of_paper(name: str, num_layers: int) -> ModelSize:
    config = presets.preset_settings(name)
    return ModelSize(
        hidden_size=config.hidden_size,
        num_layers=num_layers,
        num_heads=config.num_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        batch=1,
        lengths=(2_048, 4_096),
    )


SIZES = {
    "laptop": ModelSize(
        hidden_size=128,
        num_layers=4,
        num_heads=4,
        head_dim=16,
        vocab_size=1_024,
        batch=4,
        lengths=(256,),
    ),
    "study": ModelSize(  # of the first committed study, to which the records belong
        hidden_size=256,
        num_layers=4,
        num_heads=8,
        head_dim=16,
        vocab_size=2_048,
        batch=4,
        lengths=(256,),
    ),
    "wide": ModelSize(
        hidden_size=512,
        num_layers=4,
        num_heads=4,
        head_dim=64,
        vocab_size=2_048,
        batch=1,
        lengths=(1_024, 2_048),
    ),
    # All contenders stay on the device together; 13B keeps a quarter of its 40 layers.
    "3b": _of_paper("3b", 28),
    "13.1b": _of_paper("13.1b", 10),
}
CUT = {"3b": (2, 6), "13.1b": (1, 3), "laptop": (1, 2)}
"""Two depths of a size: the difference is that of layers alone, without embedding and loss."""
SIZES |= {
    f"{name}-{depth}-layers": replace(SIZES[name], num_layers=depth)
    for name, depths in CUT.items()
    for depth in depths
}
_SAME_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "head_dim",
    "max_position_embeddings",
    "tie_word_embeddings",
    "rms_norm_eps",
)
"""Fields that transformers' configurations and ours have in common."""
_SCALES = {
    ("cpu", "quick"): ("laptop",),
    ("cpu", "full"): ("laptop", "study", "wide"),
    ("cuda", "quick"): ("study", "wide"),
    ("cuda", "full"): ("3b", "13.1b"),
    ("cpu", "cut"): tuple(f"laptop-{depth}-layers" for depth in CUT["laptop"]),
    ("cuda", "cut"): tuple(f"{n}-{depth}-layers" for n in ("3b", "13.1b") for depth in CUT[n]),
}


def plan(config: BenchConfig) -> list[Case]:
    """The cases of one call."""
    full, cuda = config.scale != "quick", config.device == "cuda"
    dtypes: tuple[str, ...] = ("bfloat16",) if cuda else ("float32", "bfloat16")
    return [
        _case(config.device, name, SIZES[name], length, dtype, mode)
        for name in _SCALES[config.device, config.scale]
        for length in config.lengths or SIZES[name].lengths
        for dtype in config.dtypes or (dtypes if full else dtypes[:1])
        for mode in ("forward", "forward_backward")
    ]


def _case(device: str, name: str, size: ModelSize, length: int, dtype: str, mode: str) -> Case:
    shape = {"size": name, "B": size.batch, "N": length, "layers": size.num_layers}
    shape |= {"H": size.num_heads, "d": size.head_dim}
    return Case(suite="models", device=device, dtype=dtype, mode=mode, shape=shape)


def effort(case: Case) -> int:
    """Rough share of the whole work, for the time left."""
    config = SIZES[case.shape["size"]].config()
    work = flops_per_token(config, case.shape["N"], training=case.mode != "forward")
    return 20 + round(work * case.shape["B"] * case.shape["N"] / 2e9)


def smallest_bytes(case: Case) -> int:
    """Bytes of one model's logits, in the smallest dtype."""
    return 2 * case.shape["B"] * case.shape["N"] * SIZES[case.shape["size"]].vocab_size


def contenders(case: Case, only: tuple[str, ...] = ()) -> list[Contender]:
    """Every model of one case, T first; all hold freshly drawn weights.

    Args:
        case: Shape ``size``, ``B``, ``N``.
        only: Names of contenders besides T. Default: all.
    """
    names = [n for n, (role, *_) in MODEL_CONTENDERS.items() if role == T or not only or n in only]
    return [_contender(case, name) for name in names]


def model_config(case: Case, attention_type: str) -> DiffTransformerConfig:
    """The matched configuration of one attention type."""
    diff = SIZES[case.shape["size"]].config()
    if attention_type == "diff":
        return diff
    return diff.twin(attention_type).config


def _contender(case: Case, name: str) -> Contender:
    role, technique, attention_type, whose, implementation = MODEL_CONTENDERS[name]
    config = model_config(case, attention_type)
    make = partial(build, whose=whose, attention_type=attention_type)
    with torch.device(case.device):  # billions of weights are drawn there in no time
        model = make(config, implementation=implementation)
    model = model.to(case.device, case.torch_dtype)
    tokens = case.shape["B"] * case.shape["N"]
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(config.vocab_size, (case.shape["B"], case.shape["N"]), generator=generator)
    ids = ids.to(case.device)

    def forward() -> Tensor:
        loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
        return loss

    def backward(loss: Tensor) -> None:
        loss.backward()
        model.zero_grad(set_to_none=True)

    return Contender(
        name=name,
        role=role,
        backend=_backend(case, config, implementation),
        technique=technique,
        forward=forward,
        backward=backward,
        check=_once_on_gpu(
            case,
            name,
            config,
            partial(check_model, make, config, implementation, whose),
            ids[:1],
        ),
        flops=flops_per_token(config, case.shape["N"], training=case.mode != "forward") * tokens,
        tokens=tokens,
    )


_CHECKED: dict[tuple[str, ...], dict[str, Any]] = {}
"""Results of this process, by what was checked."""


def _once_on_gpu(
    case: Case,
    name: str,
    config: DiffTransformerConfig,
    check: Callable[..., dict[str, Any]],
    ids: Tensor,
) -> Callable[[bool], dict[str, Any]]:
    """The check of a model, on a CPU for every case.

    On a GPU, where time is short and float64 takes most of its memory, once per widths, layers and
    dtype: with gradients, at the shortest of the size's lengths. Longer shapes and both modes of
    one model are then timed on its word, and ``compared`` of their rows states the length.
    """
    if case.device == "cpu":
        return partial(check, ids, case.torch_dtype)
    layers = min(CHECKED_LAYERS, config.num_hidden_layers)
    widths = (config.hidden_size, config.num_heads, config.head_dim, config.vocab_size)
    key = (name, case.dtype, str(layers), str(widths))
    shortest = min(SIZES[case.shape["size"]].lengths)

    def once(_: bool) -> dict[str, Any]:
        if key not in _CHECKED:
            _CHECKED[key] = check(ids[:, :shortest], case.torch_dtype, True)
        return dict(_CHECKED[key])

    return once


def build(
    config: DiffTransformerConfig, *, implementation: str, whose: str, attention_type: str
) -> nn.Module:
    """A model of our class, or transformers' Llama or DiffLlama of the same size.

    Args:
        config: The matched configuration.
        implementation: ``attn_implementation``.
        whose: ``"diffattn"`` or ``"transformers"``.
        attention_type: ``"softmax"`` or ``"diff"`` for transformers' models.
    """
    torch.manual_seed(0)
    if whose == DIFFATTN:
        config._attn_implementation = implementation
        return DiffTransformerForCausalLM(config).train()
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
        return LlamaForCausalLM(LlamaConfig(**values)).train()
    return DiffLlamaForCausalLM(DiffLlamaConfig(**values)).train()


def _backend(case: Case, config: DiffTransformerConfig, implementation: str) -> str:
    """The backend that computes attention, by the model's own rule."""
    if implementation != "diffattn":
        return implementation
    return chosen_backend(
        config,
        device=case.device,
        dtype=case.torch_dtype,
        batch=case.shape["B"],
        num_tokens=case.shape["N"],
    )
