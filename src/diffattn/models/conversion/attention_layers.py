"""Attention layers of models that cannot be converted whole: Phi-4-mini-flash and Motif."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.errors import CheckpointError
from diffattn.layers.diff_attention import DiffAttention, GroupedDiffAttention
from diffattn.layers.saved_names import saved_name
from diffattn.models.conversion.layouts import LAMBDAS
from diffattn.models.conversion.settings_of import motif_heads, shifted_lambda_init
from diffattn.models.conversion.source import Source, open_source
from diffattn.ops.attention import diff_attention

_PHI_EPS = 1e-5


def load_attention_layer(path: str, layer: int) -> DiffAttention:
    """One attention layer of a Phi-4-mini-flash or Motif folder, with its biases.

    Call it with the layer's normalised input. Phi's layers have no positions
    (``position_embeddings=None``), and their window, if any, is bound already; Motif's take
    :func:`diffattn.rotary_embedding` of the folder's ``rope_theta``.

    Args:
        path: Folder with ``config.json`` and safetensors.
        layer: Index of the layer, counted from 0.

    Returns:
        The layer in the dtype of its weights; of Motif-2-12.7B a :class:`GroupedDiffAttention`.

    Raises:
        CheckpointError: Another model, a layer without attention, or tensors of other shapes.
    """
    with open_source(path) as source:
        if source.layout.name not in ("phi4flash", "motif"):
            raise CheckpointError(
                f"{path}: must be Phi-4-mini-flash or Motif, got {source.layout.title}. "
                "Convert the whole model instead."
            )
        config = source.settings or {}
        heads, ratio, kv_heads, width = _sizes(source, config, layer)
        shift = source.layout.lambda_shift
        schedule = shifted_lambda_init(layer + 1, shift)
        kind: Callable[..., DiffAttention] = DiffAttention
        if ratio is not None:
            kind = partial(GroupedDiffAttention, group_ratio=ratio)
        with torch.device("meta"):  # sizes are the folder's, and may be wrong
            made = kind(
                config["hidden_size"], heads, width, num_kv_heads=kv_heads, layer_idx=layer,
                lambda_init=None if schedule is None else schedule[layer],
                head_norm_eps=config.get("attn_rms_norm_eps", _PHI_EPS),
            )  # fmt: skip
        state = _state(source, layer, made)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        if f"{name}.bias" in state:
            plain = getattr(made, name)
            biased = nn.Linear(plain.in_features, plain.out_features, device="meta")
            setattr(made, name, biased)
    made.load_state_dict(state, assign=True)
    window = config.get("sliding_window")
    # Phi's lower layers see this many tokens, themselves included.
    is_lower = layer < config["num_hidden_layers"] // 2
    if source.layout.name == "phi4flash" and is_lower and window is not None:
        made.operator = partial(diff_attention, window=window)
    return made.eval()


def _sizes(
    source: Source, config: Mapping[str, Any], layer: int
) -> tuple[int, int | None, int, int]:
    """Heads, how many share a subtracted map (``None`` for pairs), key/value heads and width."""
    layers = config["num_hidden_layers"]
    if not 0 <= layer < layers:
        raise CheckpointError(f"{source.name}: layer must be below {layers}, got {layer}.")
    if source.layout.name == "phi4flash":
        period = config.get("mb_per_layer", 2)
        if (period and layer % period == 0) or layer > layers // 2 + 1:
            part = "a state-space layer" if period and layer % period == 0 else "cross-attention"
            raise CheckpointError(
                f"{source.name}: layer must have keys and values of its own, got {part} in "
                f"layer {layer}."
            )
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    grouped = config.get("num_noise_heads") is not None
    if (heads % 2 and not grouped) or kv_heads % 2:
        raise CheckpointError(
            f"{source.name}: num_attention_heads and num_key_value_heads must be even, got {heads} "
            f"and {kv_heads}."
        )
    num_heads, ratio = motif_heads(source)
    width = config.get("head_dim") or config["hidden_size"] // heads
    return num_heads, ratio, kv_heads // 2, width


def _state(source: Source, layer: int, made: DiffAttention) -> dict[str, Tensor]:
    """Read the tensors of the layer by our names, and check their shapes."""

    def read(name: str) -> Tensor | None:
        tensor = source.tensors.get(name.format(layer))
        return None if tensor is None else tensor.load()

    ends = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "subln": "subln"}
    state: dict[str, Tensor | None] = {}
    for role, name in source.names.items():
        if role in LAMBDAS:
            vector = read(name)
            state[role] = None if vector is None else vector.float()
        elif role in ends:
            state[f"{ends[role]}.weight"] = read(name)
            if role in "qkv":
                state[f"{ends[role]}.bias"] = read(name.replace(".weight", ".bias"))
    rows = [getattr(made, f"{name}_proj").out_features for name in "qkv"]
    for kind, role in (("weight", "qkv"), ("bias", "qkv_bias")):
        fused = read(source.names[role]) if role in source.names else None
        if fused is not None and fused.shape[0] == sum(rows):
            parts = zip("qkv", fused.split(rows), strict=True)
            state |= {f"{name}_proj.{kind}": part.clone() for name, part in parts}
    if "o_bias" in source.names:
        state["o_proj.bias"] = read(source.names["o_bias"])
    wanted = {saved_name(name): x for name, x in made.state_dict().items()}
    for name, like in wanted.items():
        got = state.get(name)
        if got is None or got.shape != like.shape:
            shape = "none" if got is None else list(got.shape)
            raise CheckpointError(
                f"{source.name}: layer {layer} must hold {name} as {list(like.shape)}, got {shape}."
            )
    return {name: tensor for name, tensor in state.items() if tensor is not None}
