"""A seed gives the same initial weights, whatever becomes of the code: committed runs start there.

Hashes of weights and of the order of parameters, by which optimizers and norms of gradients go.
Weights are hashed in steps of 1e-4, as kernels for other CPUs round the last bits otherwise.
"""

import hashlib

import pytest
import torch

from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.saved_names import saved_name
from diffattn.layers.shared_diff_attention import SharedDiffAttention
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

MODELS = {
    "d33bb8170081e97f": ("softmax", "softmax_half", "softmax_minus_mean"),
    "e2aed3a01adc5bbc": ("diff", "diff_added"),
    "4a6d94d44c313855": ("diff_v2", "diff_v2_added", "diff_v2_added_matched", "diff_v2_shuffled",
                         "diff_v2_raw_lambda", "diff_v2_across"),
    "54e771535af3f869": ("shared_diff",),
    "6a77612180a8b83f": ("grouped_diff",),
    "e7b75f082cfbb388": ("dex",),
    "2f2081f0db9e888f": ("none",),
    "f417d0d25d10bf91": ("gated_element",),
    "6e723ab32ed6bd3a": ("gated_head",),
    "fd1a439289ab01a9": ("diff_v2_constant", "diff_v2_no_lambda"),
    "5187c30a8e92872d": ("diff_uniform",),
    "b6cc7715e6159155": ("diff_token_lambda",),
    "60dead57ddc7b7fc": ("shared_diff_map_norm",),
}  # fmt: skip
LAYERS = {"diff": "9a98f1cfbe429ee6", "shared_diff": "2083310b4b547105"}


def digest(named_parameters):
    """Of names in files, in the order of the parameters, and of numbers."""
    total = hashlib.sha256()
    for name, parameter in named_parameters:
        steps = (parameter.detach().double() * 1e4).round().to(torch.int32)
        total.update(saved_name(name).encode() + steps.numpy().tobytes())
    return total.hexdigest()[:16]


@pytest.mark.parametrize("attention_type", ATTENTION)
def test_models_start_from_the_same_weights(attention_type, make_config):
    torch.manual_seed(7)
    model = DiffTransformerForCausalLM(make_config(attention_type, depth_scaled_init=True))
    assert attention_type in MODELS[digest(model.named_parameters())]


def test_the_row_of_the_padding_token_is_zero_and_the_others_as_ever(make_config):
    """As in transformers' own models, whose embeddings have no gradient there either."""
    rows = []
    for pad in (None, 3):
        torch.manual_seed(7)
        model = DiffTransformerForCausalLM(make_config("diff", pad_token_id=pad))
        rows.append(model.model.embed_tokens.weight.detach())
    plain, padded = rows
    assert (padded[3] == 0).all()
    kept = torch.arange(len(plain)) != 3
    assert torch.equal(padded[kept], plain[kept])


@pytest.mark.parametrize("name", ["diff", "shared_diff"])
def test_layers_start_from_the_same_weights(name):
    """Without Hugging Face."""
    torch.manual_seed(7)
    if name == "diff":
        layer = DiffAttention(24, 4, 8, num_kv_heads=2)
    else:
        layer = SharedDiffAttention(24, 4, 8, num_kv_heads=2, shared_rank=3)
    assert digest(layer.named_parameters()) == LAYERS[name]
