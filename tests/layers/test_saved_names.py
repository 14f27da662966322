"""Files keep the names that parameters have in the original code; both load."""

import pytest
import torch

from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.saved_names import present_name, saved_name
from diffattn.layers.shared_diff_attention import SharedDiffAttention

NAMES = {
    "head_norm.weight": "subln.weight",
    "lambda_bias.lambda_k2": "lambda_k2",
    "model.layers.3.self_attn.lambda_bias.lambda_q1": "model.layers.3.self_attn.lambda_q1",
    "model.layers.0.self_attn.head_norm.weight": "model.layers.0.self_attn.subln.weight",
}
SAME = (
    "q_proj.weight", "self_attn.lambda_proj.bias", "lambda_bias.weight",
    "other.head_norm.weight", "encoder.lambda_q1", "self_attn.q_up",
)  # fmt: skip


def test_names_in_files_and_in_memory():
    for present, saved in NAMES.items():
        assert saved_name(present) == saved_name(saved) == saved
        assert present_name(saved) == present_name(present) == present
    for name in SAME:
        assert saved_name(name) == present_name(name) == name


@pytest.mark.parametrize("make", [DiffAttention, SharedDiffAttention])
def test_a_layer_loads_both(make):
    options = {"shared_rank": 2} if make is SharedDiffAttention else {}
    layer, present, saved = (make(24, 4, 8, **options) for _ in range(3))
    with torch.no_grad():
        layer.head_norm.weight.uniform_(0.5, 2.0)
    state = layer.state_dict()
    present.load_state_dict(state)
    renamed = {saved_name(name): x for name, x in state.items()}
    assert {"lambda_q1", "subln.weight"} <= renamed.keys()
    saved.load_state_dict(renamed)
    for name, x in state.items():
        assert torch.equal(present.state_dict()[name], x)
        assert torch.equal(saved.state_dict()[name], x)
