"""Sizes of gradients and updates, by hand, of a step of AdamW."""

import math

import pytest
import torch

from diffattn.probes.gradients import GradientProbe

RATE, DECAY, CLIPPED = 1e-2, 0.1, 0.25


def rms(x):
    return float(x.double().square().mean().sqrt())


def measured_step(model):
    """One step of AdamW whose gradients were clipped to a quarter; and what they were before."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    ids = torch.randint(0, 32, (2, 12))
    probe = GradientProbe(model)
    probe.begin()
    model(ids, labels=ids).loss.backward()
    raw = {name: p.grad.clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad.mul_(CLIPPED)
    probe.before_step(optimizer, CLIPPED)
    optimizer.step()
    return probe.after_step(), raw


def test_gradients_updates_and_slopes_of_the_first_step(make_model):
    """AdamW's first update is g / (|g| + ε): its size is 1, its slope the sum of |g|."""
    model = make_model("diff")
    rows, raw = measured_step(model)
    assert len(rows) == 3
    for number, row in enumerate(rows):
        for name in "qkvo":
            g = raw[f"model.layers.{number}.self_attn.{name}_proj.weight"].double()
            expected = CLIPPED * g / (CLIPPED * g.abs() + 1e-8)
            assert row[name]["gradient"] == pytest.approx(rms(g), rel=1e-6)
            assert row[name]["update"] == pytest.approx(rms(expected), rel=1e-3)
            assert row[name]["slope"] == pytest.approx(float((g * expected).sum()), rel=1e-3)
        for name in "qk":
            g = raw[f"model.layers.{number}.self_attn.{name}_proj.weight"]
            for index, part in enumerate(g.view(-1, 2, 8, 32).unbind(1), start=1):
                assert row[f"{name}{index}"]["gradient"] == pytest.approx(rms(part), rel=1e-6)
        feed_forward = [
            raw[f"model.layers.{number}.mlp.{n}_proj.weight"].flatten()
            for n in ("gate", "up", "down")
        ]
        assert row["ffn"]["gradient"] == pytest.approx(rms(torch.cat(feed_forward)), rel=1e-6)


def test_size_of_heads_and_gain_of_their_norm(make_model):
    model = make_model("diff")
    seen = []
    layer = model.model.layers[1].self_attn
    torch.nn.init.constant_(layer.head_norm.weight, 3.0)
    layer.head_norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    rows, _ = measured_step(model)
    sizes = seen[0].detach().square().mean(-1).sqrt().flatten()
    assert rows[1]["head_rms"] == pytest.approx(float(sizes.median()), rel=1e-5)
    gain = 3.0 * layer.head_norm.factor / math.hypot(rows[1]["head_rms"], math.sqrt(1e-5))
    assert rows[1]["norm_gain"] == pytest.approx(gain, rel=1e-5)
    model(torch.zeros(1, 4, dtype=torch.long))
    assert len(layer.head_norm._forward_hooks) == 1  # ours is gone


@pytest.mark.parametrize(
    ("attention_type", "parts"),
    [("softmax", set()), ("diff_v2", {"q1", "q2"}), ("shared_diff", set())],
)
def test_only_matrices_of_one_map_each_are_split(make_model, attention_type, parts):
    rows, _ = measured_step(make_model(attention_type))
    assert {name for name in rows[0] if name[-1] in "12"} == parts
    assert ("norm_gain" in rows[0]) == (attention_type == "shared_diff")
