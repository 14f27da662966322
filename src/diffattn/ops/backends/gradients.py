"""Gradients of differential attention in closed form: of the operator, and of every weight."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diffattn.ops.backends import reference
from diffattn.ops.inputs.formulas import head_norm
from diffattn.ops.inputs.masking import CAUSAL, AttentionMask, repeat_heads


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionWeights:
    """The weights of one attention layer, or their gradients. C is ``hidden_size``."""

    q: Tensor
    """``[C, H, 2, D]``; axis 2 is the map, so ``q[:, :, 0]`` is W_Q1."""
    k: Tensor
    """``[C, Hkv, 2, D]``; Hkv divides H, and head i reads key/value head ``i // (H // Hkv)``."""
    v: Tensor
    """``[C, Hkv, Dv]``."""
    o: Tensor
    """``[H, Dv, C]``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadNormTerms:
    """RMSNorm over one head and its fixed factor, as in ``layers.parts.HeadNorm``."""

    factor: float = 1.0
    """γ = 1 − λ_init for differential attention, 1 for softmax attention."""
    weight: Tensor | None = None
    """``[Dv]``, the learned scale."""
    eps: float = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGradients:
    """Gradients in the shapes of their tensors; ``None`` where a layer has no λ or norm scale."""

    weights: AttentionWeights
    x: Tensor
    lam: Tensor | None
    norm_weight: Tensor | None


def diff_attention_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    grad_out: Tensor,
    *,
    scale: float | None = None,
    mask: AttentionMask = CAUSAL,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Gradients of the operator with respect to ``q``, ``k``, ``v`` and λ.

    .. math::
        dP = dO\,V^\top,\quad O_i = A_i V,\quad D_i = \mathrm{rowsum}(dO \circ O_i)

        dS_1 = A_1 \circ (dP - D_1),\quad dS_2 = -\lambda A_2 \circ (dP - D_2)

        dQ_i = s\,dS_i K_i,\quad dK_i = s\,dS_i^\top Q_i,\quad
        dV = (A_1 - \lambda A_2)^\top dO,\quad d\lambda = -\mathrm{rowsum}(dO \circ O_2)

    The gradient of a tensor that several heads, maps or tokens read is the sum over them.

    Source: arXiv:2410.05258v2, Appendix G.

    Args:
        q: As in :func:`diffattn.diff_attention` with pairs of maps, likewise k, v, λ and scale.
        grad_out: Gradient of the output, ``[B, T, H, Dv]``.
        mask: Which keys a query sees. Default: causal.

    Returns:
        Gradients of ``q``, ``k``, ``v``, ``lam`` in their shapes, float32 (float64 for float64).
    """
    num_heads, groups = q.shape[2], (k.shape[2], -1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = mask.without_unseen(q.shape[1], k, v)
    map_1, map_2, signed = reference.maps(q, k, lam, scale=scale, mask=mask)  # [B, H, T, S]
    wide = signed.dtype
    grad = grad_out.to(wide).transpose(1, 2)  # [B, H, T, Dv]
    values = repeat_heads(v, num_heads).to(wide).transpose(1, 2)  # [B, H, S, Dv]
    keys = repeat_heads(k if k.ndim == 5 else k[:, :, :, None], num_heads)
    keys = keys.to(wide).permute(0, 2, 3, 1, 4)  # [B, H, 2 or 1, S, D]
    queries = q.to(wide).permute(0, 2, 3, 1, 4)  # [B, H, 2, T, D]
    per_weight = grad @ values.mT  # dP: [B, H, T, S]
    mean_1, mean_2 = ((grad * (a @ values)).sum(-1, keepdim=True) for a in (map_1, map_2))  # D1, D2
    factor = -lam.to(wide).expand(q.shape[:3]).transpose(1, 2)[..., None]  # [B, H, T, 1]
    scores_1, scores_2 = map_1 * (per_weight - mean_1), factor * map_2 * (per_weight - mean_2)
    scores = torch.stack([scores_1, scores_2], dim=2)  # dS: [B, H, 2, T, S]
    grad_q = scale * (scores @ keys)  # [B, H, 2, T, D]
    grad_k = scale * (scores.mT @ queries)  # [B, H, 2, S, D]
    grad_k = grad_k.unflatten(1, groups).sum(2).permute(0, 3, 1, 2, 4)
    grad_v = (signed.mT @ grad).unflatten(1, groups).sum(2).transpose(1, 2)
    grad_lam = -mean_2[..., 0].transpose(1, 2)  # [B, T, H]
    grad_k = grad_k if k.ndim == 5 else grad_k.sum(3)
    return grad_q.permute(0, 3, 1, 2, 4), grad_k, grad_v, grad_lam.sum_to_size(lam.shape)


def diff_attention_weight_gradients(
    x: Tensor,
    weights: AttentionWeights,
    lam: Tensor,
    grad_y: Tensor,
    *,
    norm: HeadNormTerms | None = None,
    causal: bool = True,
) -> LayerGradients:
    r"""Gradients of a differential attention layer Y = Concat(head₁ … head_h) W_O.

    .. math::
        \frac{\partial L}{\partial W_{Q_1}} =
        \tfrac{1}{\sqrt d} X^\top [A_1 \circ (G V^\top - (A_1 \circ G V^\top) J)] K_1,\quad
        G = \frac{\partial L}{\partial Y} W_O^\top

    J is a matrix of ones. The second map has the factor :math:`-\lambda / \sqrt d`. The gradient of
    :math:`W_{K_i}` has the transposed bracket times :math:`Q_i`, that of :math:`W_V` is
    :math:`X^\top (A_1 - \lambda A_2)^\top G`. Without ``norm`` this is the paper's formula, exact
    for a layer without head norm and factor. With a head norm the paper treats the norm's Jacobian
    as constant. Here ``norm`` puts the Jacobian and γ into G, and the result is exact.

    Source: arXiv:2410.05258v2, Appendix G.

    Args:
        x: ``[N, C]`` or ``[B, N, C]``, the layer's input.
        lam: λ of the layer, scalar ``[]``.
        grad_y: Gradient of the layer's output, shape of ``x``.
        norm: Head norm and factor. Default: the layer has neither.
    """
    return _layer_gradients(x, weights, lam, grad_y, norm, causal)


def softmax_attention_weight_gradients(
    x: Tensor,
    weights: AttentionWeights,
    grad_y: Tensor,
    *,
    norm: HeadNormTerms | None = None,
    causal: bool = True,
) -> LayerGradients:
    r"""Gradients of a softmax attention layer with H heads of width 2D, the paper's comparison.

    .. math:: A = \mathrm{softmax}\left((Q_1 K_1^\top + Q_2 K_2^\top) / \sqrt{2d}\right),\quad
              \frac{\partial L}{\partial W_{Q_1}} =
              \tfrac{1}{\sqrt{2d}} X^\top [A \circ (G V^\top - (A \circ G V^\top) J)] K_1

    The query of a head is :math:`[Q_1; Q_2]`, its key :math:`[K_1; K_2]`. Arguments and result are
    those of :func:`diff_attention_weight_gradients` without λ; the norm's factor should be 1.

    Source: arXiv:2410.05258v2, Appendix G.
    """
    return _layer_gradients(x, weights, None, grad_y, norm, causal)


def diff_lambda_gradients(
    lambda_q1: Tensor, lambda_k1: Tensor, lambda_q2: Tensor, lambda_k2: Tensor, grad_lam: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Gradients of :math:`\lambda = e^{\lambda_{q1} \cdot \lambda_{k1}} -
    e^{\lambda_{q2} \cdot \lambda_{k2}} + \lambda_\mathrm{init}` with respect to its vectors.

    .. math::
        \frac{\partial L}{\partial \lambda_{q1}} = d\lambda\,
        e^{\lambda_{q1} \cdot \lambda_{k1}} \lambda_{k1},\quad
        \frac{\partial L}{\partial \lambda_{q2}} = -d\lambda\,
        e^{\lambda_{q2} \cdot \lambda_{k2}} \lambda_{k2}

    For the gradients of the key vectors, exchange q and k. If all vectors are 0, so are these.

    Source: arXiv:2410.05258v2, Eq. (2).

    Args:
        lambda_q1, lambda_k1, lambda_q2, lambda_k2: ``[D]`` each.
        grad_lam: dλ, scalar ``[]``; ``lam`` of :class:`LayerGradients`.
    """
    of_1 = grad_lam * (lambda_q1 @ lambda_k1).exp()
    of_2 = -grad_lam * (lambda_q2 @ lambda_k2).exp()
    return of_1 * lambda_k1, of_1 * lambda_q1, of_2 * lambda_k2, of_2 * lambda_q2


def head_norm_gradients(
    x: Tensor, grad_y: Tensor, norm: HeadNormTerms
) -> tuple[Tensor, Tensor | None]:
    r"""Gradients of γ w ∘ x / r, r the root of the mean square, with respect to x and w.

    .. math:: dx = \tfrac{1}{r}\left(I - \tfrac{1}{D_v}\,n n^\top\right)(\gamma w \circ dy),\quad
              n = x / r,\quad dw = \gamma \sum dy \circ n

    Appendix G replaces this Jacobian by Θ(1). It removes the gradient's component along x.

    Source: arXiv:2410.05258v2, Appendix G.

    Args:
        x: ``[..., Dv]``, heads before the norm.
        grad_y: Shape of ``x``, gradient of the normalised head.
    """
    inverse = (x.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    normed = x * inverse
    grad = norm.factor * grad_y
    grad_weight = None
    if norm.weight is not None:
        grad_weight = (grad * normed).sum_to_size(norm.weight.shape)
        grad = grad * norm.weight
    return inverse * (grad - normed * (grad * normed).mean(-1, keepdim=True)), grad_weight


def _layer_gradients(
    x: Tensor,
    weights: AttentionWeights,
    lam: Tensor | None,
    grad_y: Tensor,
    norm: HeadNormTerms | None,
    causal: bool,
) -> LayerGradients:
    """Gradients of a layer, from those of its operator; without λ of softmax attention."""
    shape = x.shape
    x, grad_y = (y.reshape(-1, *shape[-2:]) for y in (x, grad_y))  # [B, N, C]
    q, k = (torch.einsum("bnc,chmd->bnhmd", x, w) for w in (weights.q, weights.k))
    v = torch.einsum("bnc,chd->bnhd", x, weights.v)
    if lam is None:  # heads of width 2D, and a second map with λ = 0
        wide = q.flatten(3)
        inputs = torch.stack([wide, wide], dim=3), k.flatten(3), v, x.new_zeros(())
    else:
        inputs = q, k, v, lam
    scale, mask = inputs[0].shape[-1] ** -0.5, AttentionMask(causal)
    heads = out = reference.forward(*inputs, scale=scale, mask=mask)  # [B, N, H, Dv]
    grad, grad_norm = torch.einsum("bnc,hdc->bnhd", grad_y, weights.o), None  # G
    if norm is not None:
        heads = head_norm(out, norm.weight, eps=norm.eps, factor=norm.factor)
        grad, grad_norm = head_norm_gradients(out, grad, norm)

    gradients = diff_attention_gradients(*inputs, grad, mask=mask)  # in float32 or wider
    grad_q, grad_k, grad_v, grad_lam = (y.to(x.dtype) for y in gradients)
    if lam is None:
        grad_q = grad_q[:, :, :, 0]
    grad_q, grad_k = grad_q.view_as(q), grad_k.view_as(k)
    of_x = (
        torch.einsum("bnhmd,chmd->bnc", grad_q, weights.q)
        + torch.einsum("bnhmd,chmd->bnc", grad_k, weights.k)
        + torch.einsum("bnhd,chd->bnc", grad_v, weights.v)
    )
    return LayerGradients(
        weights=AttentionWeights(
            q=torch.einsum("bnc,bnhmd->chmd", x, grad_q),
            k=torch.einsum("bnc,bnhmd->chmd", x, grad_k),
            v=torch.einsum("bnc,bnhd->chd", x, grad_v),
            o=torch.einsum("bnhd,bnc->hdc", heads, grad_y),
        ),
        x=of_x.view(shape),
        lam=None if lam is None else grad_lam,
        norm_weight=grad_norm,
    )
