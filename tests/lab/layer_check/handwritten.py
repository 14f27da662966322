"""Layers as people copy them, written apart from the package; ``mistake`` plants one of them."""

import math
from functools import partial

import torch
from torch import nn

UNNORMALISED = ("no_norm", "no_head_norm", "norm_over_heads", "norm_after_output")


def angles(tokens, width):
    frequency = 10_000.0 ** (-torch.arange(0, width, 2) / width)
    return torch.outer(torch.arange(tokens), frequency)


def rotate(x):
    """``[B, heads, T, D]`` in halves."""
    angle = angles(*x.shape[-2:])
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


class Copy(nn.Module):
    """V1 with heads in adjacent pairs and no positions."""

    mistake = ""
    start = 0.1

    def __init__(self, embed_dim, num_heads, depth):
        super().__init__()
        self.heads, self.width = num_heads, embed_dim // num_heads // 2
        depth += self.mistake == "lambda_init_depth"
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        if self.mistake == "lambda_init_constant":
            self.lambda_init = 0.6
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, nn.Linear(embed_dim, embed_dim, bias=False))
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(self.start * torch.randn(self.width)))
        sizes = {"norm_over_heads": embed_dim, "norm_after_output": embed_dim}
        self.subln_weight = nn.Parameter(torch.ones(sizes.get(self.mistake, 2 * self.width)))

    def lam(self):
        a, b = self.lambda_q1 * self.lambda_k1, self.lambda_q2 * self.lambda_k2
        first, second = a.sum().exp(), b.sum().exp()
        return {
            "lambda_init_sign": first - (second + self.lambda_init),
            "lambda_sum": first + second + self.lambda_init,
            "lambda_without_exp": a.sum() - b.sum() + self.lambda_init,
            "lambda_mean_of_exp": a.exp().mean() - b.exp().mean() + self.lambda_init,
            "lambda_vectors_unused": self.lambda_init,
            "detached_lambda": (first - second + self.lambda_init).detach(),
        }.get(self.mistake, first - second + self.lambda_init)

    def norm(self, x, axes=(-1,)):
        if self.mistake in ("norm_centred", "norm_over_tokens and norm_centred"):
            x = x - x.mean(axes, keepdim=True)
        return x / (x.square().mean(axes, keepdim=True) + 1e-5).sqrt()

    def queries_keys_values(self, x):
        heads, width = self.heads, self.width
        q, k, v = (proj(x) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if self.mistake == "rotated_pairs":
            q, k = (rotate(y.unflatten(-1, (heads, -1)).transpose(1, 2)) for y in (q, k))
            q, k = (y.unflatten(-1, (2, width)).transpose(2, 3) for y in (q, k))
        else:
            q, k = (y.unflatten(-1, (heads, 2, width)).permute(0, 2, 3, 1, 4) for y in (q, k))
        if self.mistake == "mixed_pairs":
            k = self.k_proj(x).unflatten(-1, (2, heads, width)).permute(0, 3, 2, 1, 4)
        return q, k, v.unflatten(-1, (heads, -1)).transpose(1, 2)

    def maps(self, q, k, tokens):
        divisor = {"scale_of_pair": 2 * self.width, "scale_of_layer": 64, "no_scale": 1}
        scores = q @ k.mT / divisor.get(self.mistake, self.width) ** 0.5
        if self.mistake == "softmax_of_difference":
            scores = (scores[:, :, 0] - self.lam() * scores[:, :, 1])[:, :, None]
        hidden = torch.ones(tokens, tokens).triu(1)
        mask = torch.zeros(tokens, tokens)
        if self.mistake not in ("not_causal", "mask_after_softmax"):
            mask = mask.masked_fill(hidden == 1, -math.inf)
        maps = (scores + mask).softmax(-2 if self.mistake == "softmax_over_queries" else -1)
        return maps * (1 - hidden) if self.mistake == "mask_after_softmax" else maps

    def forward(self, x):
        tokens, lam = x.shape[1], self.lam()
        q, k, v = self.queries_keys_values(x)
        maps = self.maps(q, k, tokens)
        first, second = maps[:, :, 0], maps[:, :, -1]
        weights = {
            "maps_added": first + lam * second,
            "lambda_scales_both": lam * (first - second),
            "softmax_of_difference": first,
        }.get(self.mistake, first - lam * second)
        out = weights @ v  # [B, H, T, 2D]
        if self.mistake.startswith("norm_over_tokens"):
            out = self.norm(out, (-2, -1)) * self.subln_weight
        elif self.mistake not in UNNORMALISED:
            out = self.norm(out) * self.subln_weight
        factor = 1.0 if self.mistake in ("no_factor", "no_head_norm") else 1 - self.lambda_init
        flat = out if self.mistake == "heads_not_moved" else out.transpose(1, 2)
        flat = flat.reshape(x.shape)
        if self.mistake == "norm_over_heads":
            flat = self.norm(flat) * self.subln_weight
        if self.mistake == "norm_after_output":
            return factor * self.norm(self.out_proj(flat)) * self.subln_weight
        return self.out_proj(factor * flat)


class Grouped(Copy):
    """Heads share keys in groups; ``repeated_keys`` repeats keys before pairs are parted."""

    def __init__(self, embed_dim, num_heads, depth, num_kv_heads=None):
        super().__init__(embed_dim, num_heads, depth)
        assert num_kv_heads == num_heads // 2
        self.k_proj = nn.Linear(embed_dim, embed_dim // 2, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim // 2, bias=False)

    def queries_keys_values(self, x):
        q = self.q_proj(x).unflatten(-1, (self.heads, 2, -1)).permute(0, 2, 3, 1, 4)
        k = self.k_proj(x).unflatten(-1, (self.heads // 2, 2, -1)).permute(0, 2, 3, 1, 4)
        if self.mistake == "repeated_keys":
            k = k.flatten(1, 2).repeat_interleave(2, 1).unflatten(1, (self.heads, 2))
        else:
            k = k.repeat_interleave(2, 1)
        v = self.v_proj(x).unflatten(-1, (self.heads // 2, -1)).transpose(1, 2)
        return q, k, v.repeat_interleave(2, 1)


class Second(nn.Module):
    """V2 with two query heads per key head."""

    mistake = ""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.heads, self.width = n_heads, d_model // n_heads
        self.W_q = nn.Linear(d_model, 2 * d_model, bias=False)
        self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias=False) for _ in "kvo")
        self.lambda_proj = nn.Linear(d_model, n_heads)

    def forward(self, x, attn_mask=None):
        q = self.W_q(x).unflatten(-1, (2 * self.heads, -1)).transpose(1, 2)
        k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.W_k, self.W_v))
        k, v = (y.repeat_interleave(2, 1) for y in (k, v))
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
        scores = (q @ k.mT / self.width**0.5).masked_fill(hidden, -math.inf)
        out = scores.softmax(-1) @ v
        lam = self.lambda_proj(x).transpose(1, 2)[..., None]
        lam = lam if self.mistake == "no_sigmoid" else lam.sigmoid()
        if self.mistake == "pairs_of_other_keys":
            first, second = out[:, : self.heads], out[:, self.heads :]
        else:
            first, second = out[:, 0::2], out[:, 1::2]
        out = first - lam * second
        if self.mistake == "norm_in_v2":
            out = out / (out.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return self.W_o(out.transpose(1, 2).reshape(x.shape))


class Tutorial(Copy):
    """As many heads as the Transformer, λ by head, halves of a head as its maps."""

    def __init__(self, d_model, num_heads, lambda_init):
        nn.Module.__init__(self)
        self.heads, self.width, self.lambda_init = num_heads, d_model // num_heads, lambda_init
        pair = 2 * d_model
        self.W_q, self.W_k, self.W_v = (nn.Linear(d_model, pair, bias=False) for _ in "qkv")
        self.W_o = nn.Linear(pair, d_model, bias=False)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(torch.randn(num_heads, self.width)))
        self.rms_scale = nn.Parameter(torch.ones(2 * self.width))

    def lam(self):
        first = (self.lambda_q1 * self.lambda_k1).sum(-1).exp()
        second = (self.lambda_q2 * self.lambda_k2).sum(-1).exp()
        return (first - second + self.lambda_init)[:, None, None]

    def forward(self, X):
        heads = (self.heads, 2 * self.width)
        Q, K, V = (
            w(X).unflatten(-1, heads).transpose(1, 2) for w in (self.W_q, self.W_k, self.W_v)
        )
        (q1, q2), (k1, k2) = Q.chunk(2, -1), K.chunk(2, -1)
        first = self.maps(q1[:, :, None], k1[:, :, None], X.shape[1])[:, :, 0]
        second = self.maps(q2[:, :, None], k2[:, :, None], X.shape[1])[:, :, 0]
        out = (first - self.lam() * second) @ V
        out = (1 - self.lambda_init) * self.norm(out) * self.rms_scale
        return self.W_o(out.transpose(1, 2).flatten(2))


class Head(Copy):
    """One head, with projections and λ of its own."""

    def __init__(self, embed_dim, head_width, depth):
        nn.Module.__init__(self)
        self.width, self.heads = head_width, 1
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.Q, self.K, self.V = (nn.Linear(embed_dim, 2 * head_width) for _ in "qkv")
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(self, name, nn.Parameter(0.1 * torch.randn(head_width)))

    def forward(self, x):
        q, k = (w(x).unflatten(-1, (2, self.width)).transpose(1, 2) for w in (self.Q, self.K))
        maps = self.maps(q[:, None], k[:, None], x.shape[1])[:, 0]
        return (maps[:, 0] - self.lam() * maps[:, 1]) @ self.V(x)


class ListOfHeads(nn.Module):
    """Heads as modules, joined."""

    def __init__(self, dim_model, head_nums, depth):
        super().__init__()
        width = dim_model // head_nums // 2
        self.heads = nn.ModuleList(Head(dim_model, width, depth) for _ in range(head_nums))
        self.group_norm = nn.RMSNorm(2 * width)
        self.output = nn.Linear(dim_model, dim_model)

    def forward(self, x):
        out = torch.cat([self.group_norm(head(x)) for head in self.heads], -1)
        return self.output((1 - self.heads[0].lambda_init) * out)


class TwoProjections(Copy):
    """A projection for each map, as PyTorch's attention takes them."""

    def __init__(self, embed_dim, depth, n_head):
        super().__init__(embed_dim, n_head, depth)
        del self.q_proj, self.k_proj
        half = embed_dim // 2
        self.q_proj_1, self.q_proj_2 = (nn.Linear(embed_dim, half) for _ in "12")
        self.k_proj_1, self.k_proj_2 = (nn.Linear(embed_dim, half) for _ in "12")

    def queries_keys_values(self, x):
        pairs = (self.q_proj_1, self.q_proj_2), (self.k_proj_1, self.k_proj_2), (self.v_proj,)
        q, k, v = (
            torch.stack([w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in pair], 2)
            for pair in pairs
        )
        return q, k, v[:, :, 0]


class Fused(Copy):
    """One matrix, called as PyTorch's attention is; its mask must have a batch axis."""

    def __init__(self, n_embd, n_head, layer_idx):
        super().__init__(n_embd, n_head, layer_idx)
        del self.q_proj, self.k_proj, self.v_proj
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)

        self.q_proj, self.k_proj, self.v_proj = (partial(self.part, i) for i in range(3))

    def part(self, number, x):
        return self.c_attn(x).chunk(3, -1)[number]

    def forward(self, query, key, value, mask=None):
        assert query is key is value
        if mask is not None:
            assert mask[:, None].shape == (1, 1, query.shape[1], query.shape[1])
            return super().forward(query)
        self.mistake, right = "not_causal", self.mistake
        out = super().forward(query)
        self.mistake = right
        return out


class ZeroVectors(Copy):
    """The public layer whose λ never learns."""

    start = 0.0


class NumberForLambda(Copy):
    """λ as one learned number."""

    def __init__(self, embed_dim, num_heads, depth):
        super().__init__(embed_dim, num_heads, depth)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            delattr(self, name)
        self.lambda_param = nn.Parameter(torch.tensor(0.5))

    def lam(self):
        return self.lambda_param


class NormBehindOutput(Copy):
    """No mask, values of one width, a LayerNorm behind the output projection."""

    mistake = "not_causal"

    def __init__(self, embed_dim, num_heads, depth):
        super().__init__(embed_dim, num_heads, depth)
        self.v_proj = nn.Linear(embed_dim, embed_dim // 2)
        self.out_proj = nn.Linear(embed_dim // 2, embed_dim)
        del self.subln_weight
        self.last_norm = nn.LayerNorm(embed_dim)

    def forward(self, x):
        q, k, v = self.queries_keys_values(x)
        maps = self.maps(q, k, x.shape[1])
        out = (maps[:, :, 0] - self.lam() * maps[:, :, 1]) @ v
        return (1 - self.lambda_init) * self.last_norm(
            self.out_proj(out.transpose(1, 2).flatten(2))
        )


class Narrow(Copy):
    """Values of one width."""

    def __init__(self, embed_dim, num_heads, depth):
        super().__init__(embed_dim, num_heads, depth)
        self.v_proj = nn.Linear(embed_dim, embed_dim // 2, bias=False)
        self.out_proj = nn.Linear(embed_dim // 2, embed_dim, bias=False)
        self.subln_weight = nn.Parameter(torch.ones(self.width))

    def forward(self, x):
        q, k, v = self.queries_keys_values(x)
        maps = self.maps(q, k, x.shape[1])
        out = self.norm((maps[:, :, 0] - self.lam() * maps[:, :, 1]) @ v) * self.subln_weight
        return self.out_proj((1 - self.lambda_init) * out.transpose(1, 2).flatten(2))


class Original(Copy):
    """Positions are given, and a mask may be; biases; the output is a tuple."""

    def __init__(self, embed_dim, num_heads, depth, dropout):
        super().__init__(embed_dim, num_heads, depth)
        self.dropout = dropout
        self.q_proj.bias = nn.Parameter(torch.zeros(embed_dim))

    def forward(self, x, rel_pos, attn_mask=None):
        (cos, sin), (q, k, v) = rel_pos, self.queries_keys_values(x)
        q, k = (
            torch.stack(
                (y[..., 0::2] * cos - y[..., 1::2] * sin, y[..., 1::2] * cos + y[..., 0::2] * sin),
                -1,
            ).flatten(-2)
            for y in (q, k)
        )
        scores = q @ k.mT / self.width**0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, -math.inf)
        maps = scores.softmax(-1)
        out = self.norm((maps[:, :, 0] - self.lam() * maps[:, :, 1]) @ v) * self.subln_weight
        flat = (1 - self.lambda_init) * out.transpose(1, 2).flatten(2)
        return self.out_proj(flat), maps


def needs_configuration(config):
    return config


def fails(dim):
    raise RuntimeError("no such\nkernel")


def factory():
    return Copy(32, 2, 5)


class OtherShape(Copy):
    """Keys of another width."""

    def __init__(self, embed_dim, num_heads, depth):
        super().__init__(embed_dim, num_heads, depth)
        self.k_proj = nn.Linear(embed_dim, embed_dim - 8)


class OtherArgument(Copy):
    def forward(self, x, *, memory):
        return super().forward(x)


class Unknown(Copy):
    """A step that no formula has."""

    def forward(self, x):
        return super().forward(x).tanh()


class NoNames(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.first = nn.Linear(dim, dim)

    def forward(self, x):
        return self.first(x)


instance = Copy(64, 4, 0)
