"""Any Trainer decays what the papers' recipe decays: matrices, and neither λ nor norms."""

import pytest
from transformers import Trainer, TrainingArguments

from diffattn.lab.training.loop.schedule import parameter_groups
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_a_stock_trainer_groups_as_ours(attention_type, make_config, tmp_path):
    bias = attention_type == "diff_v2"
    config = make_config(
        attention_type, head_norm=True, lambda_bias=bias, qkv_bias=True, qk_norm=True
    )
    model = DiffTransformerForCausalLM(config)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), weight_decay=0.1, use_cpu=True, report_to=[]
    )
    trainer_groups = Trainer(model=model, args=arguments).create_optimizer().param_groups
    for group, expected in zip(trainer_groups, parameter_groups(model, 0.1), strict=True):
        assert group["weight_decay"] == expected["weight_decay"]
        assert [id(x) for x in group["params"]] == [id(x) for x in expected["params"]]
        assert group["params"]
