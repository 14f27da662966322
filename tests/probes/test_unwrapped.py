"""A model of ours is read as what it is inside an adapter or a compiler, or not at all."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.modeling_diff_transformer import DiffTransformerForSequenceClassification
from diffattn.probes.attention_rows import attention_rows
from diffattn.probes.layer_reader import read_layers, require_readable
from diffattn.probes.passes import unwrapped

# peft asks transformers 5.23 by an older name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def compiled(model):
    return torch.compile(model, backend="eager")


def with_adapter(model):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    options = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    return peft.get_peft_model(model, options)


WRAPS = [compiled, with_adapter, lambda model: compiled(with_adapter(model))]


@pytest.mark.parametrize("wrap", WRAPS, ids=["compiled", "peft", "both"])
def test_both_maps_and_lambda_are_read(make_model, input_ids, wrap):
    model = make_model("diff").eval()
    wrapped, ids = wrap(model).eval(), input_ids[:1]
    assert unwrapped(wrapped) is model
    assert unwrapped(model) is model
    for rows, plain in zip(attention_rows(wrapped, ids), attention_rows(model, ids), strict=True):
        assert torch.equal(rows.maps, plain.maps)
        assert torch.equal(rows.signed, plain.signed)
        assert rows.maps.shape[1] == 2
    require_readable(wrapped, 12)
    seen = {}
    read_layers(wrapped, ids, seen.__setitem__)
    assert [seen[layer].lam is not None for layer in sorted(seen)] == [True] * 3


def test_tokens_before_every_text_are_refused(make_model, input_ids):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    options = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    wrapped = peft.get_peft_model(make_model("diff").eval(), options)
    with pytest.raises(ConfigError, match="must act within the layers, got tokens before every"):
        attention_rows(wrapped, input_ids[:1])


def test_a_model_class_without_a_language_head_is_refused(make_model, input_ids):
    model = DiffTransformerForSequenceClassification(make_model("diff").config).eval()
    with pytest.raises(ConfigError, match="must be a DiffTransformerForCausalLM, got DiffTransf"):
        attention_rows(model, input_ids[:1])
