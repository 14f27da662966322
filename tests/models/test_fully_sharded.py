"""A bfloat16 model whose λ stays float32 is sharded by FSDP2 and computes what it does whole."""

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh
from transformers.distributed import DistributedConfig

from children import launched, values
from diffattn.lab.training.distributed import joined
from diffattn.layers.lambda_vectors import LambdaVectors
from diffattn.models.config.attention_types import ATTENTION, ATTENTION_TYPES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def by_hand(folder):
    """As the documentation says: λ first, then the block that holds it, then the rest."""
    model = DiffTransformerForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    mesh = init_device_mesh("cpu", (2,))
    for module in model.modules():
        if isinstance(module, LambdaVectors):
            fully_shard(module, mesh=mesh)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def by_transformers(folder):
    return DiffTransformerForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, distributed_config=DistributedConfig(fsdp_size=2)
    )


@pytest.mark.scheduled
@pytest.mark.parametrize("shard", [by_hand, by_transformers])
@pytest.mark.parametrize(
    ("attention_type", "options"),
    [*((name, {}) for name in ATTENTION_TYPES), ("diff_v2", {"qkv_bias": True, "qk_norm": True})],
)
def test_gradients_are_those_of_the_whole_model(
    attention_type, options, shard, make_config, build, ids, tmp_path
):
    model = build(make_config(attention_type, tie_word_embeddings=False, **options)).to(
        torch.bfloat16
    )
    model.save_pretrained(tmp_path)

    def run():
        with joined():
            model = shard(tmp_path)
            assert all(isinstance(x, DTensor) for x in model.parameters())
            loss = model(ids, labels=ids).loss  # the same batch on both: the mean is its gradient
            loss.backward()
            gradients = {name: whole(x.grad) for name, x in model.named_parameters()}
            return loss.detach(), gradients

    model = DiffTransformerForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    expected = model(ids, labels=ids).loss
    expected.backward()
    for loss, gradients in values(launched(2, run)):
        assert torch.equal(loss, expected)
        for name, parameter in model.named_parameters():
            is_lambda = ".lambda_bias." in name
            assert parameter.dtype == (torch.float32 if is_lambda else torch.bfloat16)
            assert gradients[name].dtype == parameter.dtype
            # The mean of two equal numbers; the reduction divides before it adds.
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_lambda_vectors_are_a_sharding_group_of_their_own(attention_type, make_config):
    model = DiffTransformerForCausalLM(make_config(attention_type))
    apart = {"LambdaVectors"} if ATTENTION[attention_type].lambda_vectors else set()
    assert set(model._no_split_modules) == {"DiffTransformerBlock"} | apart
