"""A second oracle: Eq. (1) in float64 as its definition reads, without a line of the package."""

import torch


def plain_attention(q, k, v, lam, **options):
    """Arguments and result of ``diff_attention``; every tensor float64."""
    maps, lam = plain_maps(q, k, lam, **options)
    heads = torch.arange(q.shape[2]) // (q.shape[2] // k.shape[2])
    return torch.einsum("bhts,bshc->bthc", maps[0] - lam * maps[1], v[:, :, heads])


def plain_maps(q, k, lam, *, scale=None, **options):
    """Both maps ``[2, B, H, T, S]`` and λ ``[B, H, T, 1]``; every tensor float64."""
    assert {x.dtype for x in (q, k, lam)} == {torch.float64}
    batch, num_queries, num_heads, _, head_dim = q.shape
    heads = torch.arange(num_heads) // (num_heads // k.shape[2])  # pair first, then repeat
    keys = (k if k.ndim == 5 else torch.stack((k, k), 3))[:, :, heads]
    scale = head_dim**-0.5 if scale is None else scale
    scores = torch.einsum("bthmd,bshmd->bhmts", q, keys) * scale
    seen = visible(batch, num_queries, k.shape[1], **options)[:, None, None]
    top = scores.detach().masked_fill(~seen, -1e300)
    top = top.amax(-1, keepdim=True) if k.shape[1] else top.sum(-1, keepdim=True)
    weights = (scores - top).masked_fill(~seen, 0.0).exp() * seen
    total = weights.sum(-1, keepdim=True)
    maps = weights / torch.where(total > 0, total, 1.0)
    lam = lam.expand(batch, num_queries, num_heads).transpose(1, 2)[..., None]
    return maps.permute(2, 0, 1, 3, 4), lam


def visible(
    batch,
    num_queries,
    num_keys,
    *,
    causal=True,
    window=None,
    key_padding_mask=None,
    kv_lengths=None,
    cu_seqlens=None,
):
    """True ``[B, T, S]`` where a query sees a key, as the options are documented."""
    lengths = torch.full((batch,), num_keys) if kv_lengths is None else kv_lengths.long()
    position = torch.arange(num_queries) + lengths[:, None] - num_queries  # [B, T]
    before = position[:, :, None] - torch.arange(num_keys)  # how far a key lies behind the query
    seen = (torch.arange(num_keys) < lengths[:, None])[:, None].expand_as(before)
    if causal:
        seen = seen & (before >= 0)
    if window is not None:
        seen = seen & (before >= 0) & (before < window)
    if key_padding_mask is not None:
        seen = seen & key_padding_mask[:, None]
    if cu_seqlens is not None:
        borders = cu_seqlens.tolist()
        document = [sum(start <= token for start in borders[1:]) for token in range(num_keys)]
        document = torch.tensor(document)
        seen = seen & (document[:, None] == document)
    return seen
