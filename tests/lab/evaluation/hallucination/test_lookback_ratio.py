"""The lookback ratio against a computation from full maps."""

import pytest
import torch

from diffattn.lab.evaluation.hallucination.lookback_ratio import MAPS, lookback_ratios
from diffattn.ops.inputs.lambda_param import diff_lambda
from diffattn.probes.attention_rows import attention_implementation

PROMPT, WRITTEN, CONTEXT = list(range(5, 30)), list(range(40, 61)), 21


def full_maps(model):
    """A1 and A1 − λA2 of every layer over the whole sequence, ``[H, T, T]``."""
    ids = torch.tensor([PROMPT + WRITTEN[:-1]])
    network, kind = model.network, model.network.config.model_type
    if kind == "diff_transformer":
        out = network(ids, output_attentions=True, output_attention_maps=True)
        return [
            (maps[0, :, 0], signed[0])
            for maps, signed in zip(out.attention_maps, out.attentions, strict=True)
        ]
    with attention_implementation(model.network, "eager"):
        weights = [layer[0] for layer in network(ids, output_attentions=True).attentions]
    if kind == "llama":
        return [(w, w) for w in weights]
    found = []
    for layer, w in zip(network.model.layers, weights, strict=True):
        x = layer.self_attn
        lam = diff_lambda(x.lambda_q1, x.lambda_k1, x.lambda_q2, x.lambda_k2, x.lambda_init)
        half = len(w) // 2
        found.append((w[:half], w[:half] - lam * w[half:]))
    return found


@torch.no_grad()
def test_ratios_equal_those_of_full_maps(model):
    found = lookback_ratios(model, PROMPT, WRITTEN, CONTEXT)
    assert tuple(found) == MAPS
    for layer, (map_1, acting) in enumerate(full_maps(model)):
        for head in range(len(map_1)):
            rows = {"a1": map_1[head], "difference": acting[head], "absolute": acting[head].abs()}
            for name, row in rows.items():
                steps = range(len(PROMPT) - 1, len(PROMPT) + len(WRITTEN) - 1)
                c = torch.stack([row[t, :CONTEXT].mean() for t in steps])
                n = torch.stack([row[t, CONTEXT : t + 1].mean() for t in steps])
                assert len(c) == len(WRITTEN)
                expected = float((c / (c.abs() + n.abs())).mean())
                if name != "difference":
                    assert expected == pytest.approx(float((c / (c + n)).mean()))
                # Ratios are stored to six digits.
                assert found[name][layer][head] == pytest.approx(expected, abs=6e-7)


def test_the_first_token_alone(model):
    found = lookback_ratios(model, PROMPT, WRITTEN[:1], len(PROMPT) - 1)
    assert all(0 <= x <= 1 for name in ("a1", "absolute") for layer in found[name] for x in layer)


def test_a_uniform_map_has_one_half(build):
    model = build("softmax", seed=3)
    with torch.no_grad():
        for block in model.network.model.layers:
            block.self_attn.q_proj.weight.zero_()
    ratios = lookback_ratios(model, PROMPT, WRITTEN, CONTEXT)
    assert all(x == pytest.approx(0.5, abs=1e-6) for layer in ratios["a1"] for x in layer)
