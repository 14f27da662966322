"""Quantisers leave V2's λ projection whole, and a model of mixed dtypes computes.

bitsandbytes needs a GPU: what is tested is the list that transformers' quantisers read.
"""

import pytest
import torch
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_only_projections_of_whole_heads_are_quantised(attention_type, make_config):
    model = DiffTransformerForCausalLM(make_config(attention_type))
    skipped = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    converted = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and should_convert_module(name, skipped)
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
