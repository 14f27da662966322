"""Find the projections, λ's parameters and the norm of a foreign layer by name and shape."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from diffattn.errors import ConfigError
from diffattn.lab.layer_check.formula import LayerWeights
from diffattn.layers.shared_diff_attention import folded_weight

_FILLERS = {"w", "proj", "projection", "linear", "lin", "to", "layer", "dense"}
_ROLES = {
    "q": "q", "query": "q", "queries": "q", "wq": "q", "k": "k", "key": "k", "keys": "k",
    "wk": "k", "v": "v", "value": "v", "values": "v", "wv": "v", "o": "o", "out": "o",
    "output": "o", "wo": "o", "c": "o", "fc": "o", "": "o", "qkv": "qkv", "wqkv": "qkv",
    "c_attn": "qkv", "in": "qkv", "q_down": "q_down", "k_down": "k_down",
}  # fmt: skip
_NORM = re.compile("norm|ln|scale|gamma")
LAMBDA_NAME = re.compile("lambda|λ|lam_|lam$")


def read_weights(
    layer: nn.Module, heads: int | None = None, lam: float | None = None
) -> LayerWeights:
    """Read the weights of a layer by role, float64.

    ``heads`` is used only if the layer is not V2 and λ has no vectors, whose width is D; ``lam``
    only if the layer has no parameters of λ.
    """
    where = type(layer).__name__
    stacks: dict[tuple[str, str], Tensor] = {}
    lambdas, norms, ups = {}, {}, {}
    for name, parameter in sorted(layer.named_parameters(), key=_is_second_map):
        tensor = parameter.detach().double()
        kind, short_name = "bias" if name.endswith("bias") else "matrix", _component(name)
        if LAMBDA_NAME.search(name.lower()):
            lambdas[name] = tensor
        elif name in ("q_up", "k_up"):
            ups[name[0]] = tensor
        elif tensor.ndim <= 2 and short_name in _ROLES:
            key = (kind, _ROLES[short_name])
            axis = -1 if key == ("matrix", "o") else 0
            stacks[key] = torch.cat((stacks[key], tensor), axis) if key in stacks else tensor
        elif tensor.ndim == 1 and _NORM.search(name.lower()):
            norms[kind] = tensor
    matrices = {role: tensor for (kind, role), tensor in stacks.items() if kind == "matrix"}
    biases = {role: tensor for (kind, role), tensor in stacks.items() if kind == "bias"}
    biases |= {"norm": norms["bias"]} if "bias" in norms else {}
    for tensors in (matrices, biases):
        if "qkv" in tensors:
            tensors |= dict(zip("qkv", tensors.pop("qkv").chunk(3), strict=True))
    attention_type, vectors = "shared_diff" if ups else "diff", _vectors(lambdas, matrices, biases)
    if "lambda_proj" in matrices:
        attention_type = "diff_v2"
    elif lam is not None and not vectors:
        vectors = (torch.tensor([lam], dtype=torch.float64),)
    missing = [f"{role}_proj" for role in "qkvo" if role not in matrices]
    if missing or (not vectors and attention_type != "diff_v2"):
        names = ", ".join(name for name, _ in layer.named_parameters()) or "nothing"
        raise ConfigError(
            f"{where}: must have projections named q_proj, k_proj, v_proj and o_proj (or one qkv), "
            "and of λ vectors lambda_q1, lambda_k1, lambda_q2 and lambda_k2 (V2: lambda_proj), "
            f"got {names}."
        )
    for role, up in ups.items():
        matrices[role] = folded_weight(matrices[role], matrices.pop(f"{role}_down"), up)
    sizes = _sizes(where, attention_type, matrices, vectors, heads)
    return LayerWeights(
        attention_type=attention_type, matrices=matrices, biases=biases, lambdas=vectors,
        norm=norms.get("matrix"), **sizes,
    )  # fmt: skip


def _component(name: str) -> str:
    """The part of a parameter's name that tells its role: ``q`` for ``attn.q_proj.weight``."""
    parts = [part for part in name.lower().split(".") if not part.isdecimal()]
    if len(parts) > 1 and parts[-1] in ("weight", "bias"):
        parts.pop()
    words = re.sub(r"_?[12]|_weight|_bias", "", parts[-1]).split("_")
    return "_".join(word for word in words if word not in _FILLERS)


def _is_second_map(item: tuple[str, Any]) -> bool:
    """Whether a parameter belongs to the second map; as a sort key it puts these rows last."""
    parts = [part for part in item[0].split(".") if not part.isdecimal()]
    return any("2" in part for part in parts[-2:])


def _vectors(
    lambdas: dict[str, Tensor], matrices: dict[str, Tensor], biases: dict[str, Tensor]
) -> tuple[Tensor, ...]:
    """λ's four vectors, its one number, or nothing; V2's λ projection is added to ``matrices``."""
    vectors: dict[str, list[Tensor]] = {}
    for name, tensor in lambdas.items():
        place = re.search("([qk])_?([12])", name)
        if place is not None:
            vectors.setdefault(place[2] + place[1], []).append(tensor)
    if len(vectors) == 4:
        by_head = (vectors[place] for place in ("1q", "1k", "2q", "2k"))
        return tuple(torch.stack(x) if len(x) > 1 else x[0] for x in by_head)
    for name, tensor in lambdas.items():
        if tensor.ndim == 2:
            matrices["lambda_proj"] = tensor
        elif name.endswith("bias"):
            biases["lambda_proj"] = tensor
        elif len(lambdas) == 1:
            return (tensor.flatten(),)
    return ()


def _sizes(
    where: str,
    attention_type: str,
    matrices: dict[str, Tensor],
    lambdas: tuple[Tensor, ...],
    heads: int | None,
) -> dict[str, int]:
    """H, Hkv and D; raises ``ConfigError`` if no differential attention has these shapes."""
    rows = {role: tensor.shape[0] for role, tensor in matrices.items()}
    shapes = ", ".join(f"{role} {list(tensor.shape)}" for role, tensor in matrices.items())
    v2 = attention_type == "diff_v2"
    if v2:
        heads = rows["lambda_proj"]
    elif len(lambdas) == 4:
        heads = rows["q"] // (2 * lambdas[0].shape[-1])
    if not heads or rows["q"] % (2 * heads):
        raise ConfigError(
            f"{where}: q must have 2 x heads x width rows, got {shapes} and {heads} heads."
        )
    width = rows["q"] // (2 * heads)
    kv_heads = rows["k"] // (width if v2 else 2 * width)
    value_width = rows["v"] // max(kv_heads, 1)
    fits = (
        kv_heads and heads % kv_heads == 0
        and rows["k"] == kv_heads * (1 if v2 else 2) * width
        and matrices["o"].shape[1] == heads * value_width
        and len({matrices[role].shape[1] for role in "qkv"} | {rows["o"]}) == 1
    )  # fmt: skip
    if not fits:
        raise ConfigError(
            f"{where}: with {heads} heads of width {width} k must have "
            f"{'' if v2 else '2 x '}Hkv x {width} rows, v Hkv x Dv, o H x Dv columns, got {shapes}."
        )
    return {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": width}
