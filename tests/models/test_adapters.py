"""peft on our models: default targets, a learned prefix."""

import pytest
import torch

from diffattn.models.config.attention_types import ATTENTION_TYPES, CONTROL_TYPES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

peft = pytest.importorskip("peft", reason="peft is optional")
pytestmark = [
    pytest.mark.scheduled,  # importing peft takes seconds
    # peft asks transformers 5.23 by an older name.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


@pytest.mark.parametrize("attention_type", [*ATTENTION_TYPES, *CONTROL_TYPES])
def test_default_targets_are_there(attention_type, make_config):
    config = make_config(attention_type)
    layer = DiffTransformerForCausalLM(config).model.layers[0].self_attn
    modules = dict(layer.named_children()).keys()
    targets = config.adapter_targets
    whole = modules & {"lambda_bias", "dex_proj"}
    assert set(targets["modules_to_save"]) == whole
    assert {x for x in modules - whole if x.endswith("_proj")} == set(targets["target_modules"])


def test_an_adapter_starts_equal_and_trains(attention_type, make_config, build, ids, tmp_path):
    model = build(make_config(attention_type))
    with torch.no_grad():
        before = model(ids).logits
    options = peft.LoraConfig(
        r=2, task_type="CAUSAL_LM", init_lora_weights="gaussian", **model.config.adapter_targets
    )
    adapted = peft.get_peft_model(model, options)
    with torch.no_grad():
        assert torch.equal(adapted(ids).logits, before)
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
    start = {n: p.detach().clone() for n, p in adapted.named_parameters() if p.requires_grad}
    for _ in range(2):  # in the first step, one factor of each product is still zero
        optimizer.zero_grad()
        adapted(ids, labels=ids).loss.backward()
        optimizer.step()
    moved = {n for n, p in adapted.named_parameters() if n in start and (p != start[n]).any()}
    assert moved == set(start)
    assert any("lambda" in name for name in moved) == (attention_type != "softmax")
    adapted.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(build(make_config(attention_type)), tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, adapted.eval()(ids).logits)


def test_prefix_tuning(attention_type, make_config, build, ids):
    model = build(make_config(attention_type))
    options = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    tuned = peft.get_peft_model(model, options)
    tuned(ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()
    prefix = tuned.prompt_encoder.default.embedding.weight
    assert prefix.grad.abs().min() > 0
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    tokens = tuned.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    assert tokens.shape == (2, 14)
