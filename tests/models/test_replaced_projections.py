"""A projection may be any module of the same call: quantised, adapted or wrapped.

bitsandbytes needs a GPU: what is tested is the list that transformers' quantisers read.
"""

import pytest
import torch
from torch import nn
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from diffattn.models.config.attention_types import ATTENTION_TYPES, CONTROL_TYPES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.gradients import GradientProbe


class Wrapped(nn.Module):
    """What another package puts in the place of a projection: no ``weight``, no ``bias``."""

    def __init__(self, projection):
        super().__init__()
        self.inner = projection

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("attention_type", [*ATTENTION_TYPES, *CONTROL_TYPES])
def test_replaced_projections_compute_the_same(make_config, build, ids, attention_type):
    model = build(make_config(attention_type, tie_word_embeddings=False))
    with torch.no_grad():
        expected = model(ids).logits
        for part in [*model.modules()]:
            for name, module in [*part.named_children()]:
                if isinstance(module, nn.Linear):
                    setattr(part, name, Wrapped(module))
        assert torch.equal(model(ids).logits, expected)


@pytest.mark.parametrize("attention_type", ["diff_v2", "diff_token_lambda", "gated_head"])
def test_a_wrapped_projection_of_lambda_keeps_its_wider_dtype(
    make_config, build, ids, attention_type
):
    model = build(make_config(attention_type)).bfloat16()
    for block in model.model.layers:
        block.self_attn.lambda_proj = Wrapped(block.self_attn.lambda_proj.float())
    assert model(ids).logits.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*quantiz:DeprecationWarning", "ignore:.*:UserWarning")
def test_dynamic_quantisation_of_every_type(make_config, build, ids, attention_type):
    """Their projections have no parameters, and ``weight`` is a method."""
    model = build(make_config(attention_type))
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with torch.no_grad():
        expected, logits = model(ids).logits, quantised(ids).logits
    assert (logits - expected).square().mean() < 0.05 * expected.square().mean()


def test_gradients_of_what_adapters_train_are_measured(make_config, build, ids):
    """The base of an adapter is frozen, and is no matrix of the step."""

    class Adapted(Wrapped):
        def __init__(self, projection):
            super().__init__(projection.requires_grad_(False))
            self.down = nn.Parameter(torch.randn(2, projection.in_features))
            self.up = nn.Parameter(torch.randn(projection.out_features, 2))

        def forward(self, x):
            return self.inner(x) + x @ self.down.mT @ self.up.mT

    model = build(make_config("diff"))
    for block in model.model.layers:
        for name in "qk":
            projection = getattr(block.self_attn, f"{name}_proj")
            setattr(block.self_attn, f"{name}_proj", Adapted(projection))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    probe = GradientProbe(model)
    probe.begin()
    model(ids, labels=ids).loss.backward()
    probe.before_step(optimizer, 1.0)
    optimizer.step()
    for block, row in zip(model.model.layers, probe.after_step(), strict=True):
        squares = [
            p.grad.square() for p in (block.self_attn.q_proj.down, block.self_attn.q_proj.up)
        ]
        expected = torch.cat([x.flatten() for x in squares]).mean().sqrt()
        assert row["q"]["gradient"] == pytest.approx(float(expected), rel=1e-5)
        assert "q1" not in row


@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_only_projections_of_whole_heads_are_quantised(attention_type, make_config):
    model = DiffTransformerForCausalLM(make_config(attention_type))
    skipped = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    converted = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and should_convert_module(name, skipped)
    }
    others = {
        "shared_diff": {"q_down_proj", "k_down_proj"},
        "gated_element": {"lambda_proj"},
        "dex": {"dex_proj"},
    }
    feed_forward = {"gate_proj", "up_proj", "down_proj"}
    assert converted == {"q_proj", "k_proj", "v_proj", "o_proj"} | feed_forward | others.get(
        attention_type, set()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_16_bits_computes(attention_type, make_config, build, ids, tmp_path, dtype):
    """In float16, Hugging Face keeps the λ projection in float32."""
    build(make_config(attention_type)).save_pretrained(tmp_path)
    model = DiffTransformerForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    if attention_type in ("diff_v2", "gated_head"):
        wanted = torch.float32 if dtype == torch.float16 else dtype
        assert model.model.layers[0].self_attn.lambda_proj.weight.dtype == wanted
    with torch.no_grad():
        logits = model(ids).logits
    assert logits.dtype == dtype
    assert logits.isfinite().all()
