"""Made-up maps for the viewer's pages, and how a page is read back without a browser."""

import base64
import json
import re
import zlib

import numpy as np

from diffattn.lab.report.viewer.values import (
    MAX_CODE,
    ViewedLayer,
    ViewedModel,
    ViewedText,
    to_codes,
    to_weights,
)


def random_maps(generator, *shape, spread=2.0):
    """Causal softmax maps ``[..., T, T]`` of random scores."""
    scores = spread * generator.normal(size=shape)
    scores[..., ~np.tri(shape[-1], dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def half_step(codes, scales):
    """The largest rounding error that each code can hide."""
    of_row = 1.0 if scales is None else scales[..., np.tril_indices(scales.shape[-1])[0]]
    return (codes + 0.25) / MAX_CODE**2 * of_row


def made_up_layer(
    generator, index, tokens, *, heads=2, maps=2, row_scales=True, per_token=False, segments=(),
    spread=2.0,
):  # fmt: skip
    """A layer, and the maps and λ it was made of."""
    weights = random_maps(generator, heads, maps, tokens, tokens, spread=spread)
    shape = (heads, tokens) if per_token else (1, 1)
    lam = generator.uniform(0.2, 0.9, shape).astype(np.float32) if maps == 2 else None
    codes, scales, error = to_codes(weights, row_scales=row_scales)
    sums = None
    if segments:
        kinds = [weights[:, i] for i in range(maps)]
        if lam is not None:
            kinds.append(np.abs(weights[:, 0] - lam[..., None] * weights[:, 1]))
        sums = np.stack(
            [np.stack([x[..., s.start : s.end].sum(-1) for s in segments], -1) for x in kinds]
        )
    layer = ViewedLayer(
        index=index, codes=codes, scales=scales, lam=lam, error=error, sums=sums,
        clearest=(0.5 + 0.1 * index, 0, 0),
    )  # fmt: skip
    return layer, weights, lam


def made_up_model(label="diff", pieces=("<s>", " a", "b"), *, layers=2, segments=(), **options):
    generator = np.random.default_rng(len(pieces))
    text = ViewedText(pieces=tuple(pieces), begins_with_bos=True, segments=tuple(segments))
    made = [
        made_up_layer(generator, i, len(pieces), segments=segments, **options)[0]
        for i in range(layers)
    ]
    return ViewedModel(
        label=label, facts=("diff", "float32"), text=text, layers=tuple(made), num_layers=layers
    )


def page_data(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1]
    )


def block_bytes(page, name):
    pattern = rf'<script type="application/octet-stream" id="{name}">([A-Za-z0-9+/=]*)</script>'
    return zlib.decompress(base64.b64decode(re.search(pattern, page)[1]))


def read_layer(page, number, place):
    """λ, weights and sums of a layer as the page holds them, by the page's own description."""
    data = page_data(page)
    model = data["models"][number]
    tokens = len(data["texts"][model["text"]]["tokens"])
    heads, maps = model["heads"][place], model["maps"]
    content, at = block_bytes(page, f"m{number}l{place}"), 0

    def take(dtype, *shape):
        nonlocal at
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        results = np.frombuffer(content[at : at + size], dtype).reshape(shape)
        at += size
        return results

    lam = take("<f4", model["lambdas"][place]) if model["lambdas"][place] else None
    scales = take("<f4", heads, maps, tokens) if model["scaled"][place] else None
    codes = take("u1", heads, maps, tokens * (tokens + 1) // 2)
    sums = None
    if model["sumScales"][place] is not None:
        segments = len(data["texts"][model["text"]]["segments"])
        kinds = 3 if maps == 2 else 1
        sums = take("<u2", kinds, heads, tokens, segments) * (model["sumScales"][place] / 65535)
    assert at == len(content)
    return lam, to_weights(codes, scales), sums
