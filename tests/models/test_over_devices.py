"""A model over two devices computes what it does on one: split by heads, or sharded by FSDP2."""

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh
from transformers.distributed import DistributedConfig

from children import launched, values
from diffattn.lab.training.distributed import joined
from diffattn.layers.parts import LambdaVectors
from diffattn.models.config.attention_types import ATTENTION, ATTENTION_TYPES
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def twin_config(attention_type, **options):
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2}
    base = DiffTransformerConfig(
        attention_type="softmax", num_heads=8, head_dim=4, **sizes, **options
    )
    return base.twin(attention_type).config


def saved_model(attention_type, folder, num_kv_heads, **options):
    config = twin_config(attention_type, num_kv_heads=num_kv_heads, **options)
    model = DiffTransformerForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))  # λ and norms off their start
    model.save_pretrained(folder)
    return model


def split(folder):
    return DiffTransformerForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(tp_size=2, tp_plan="auto")
    )


@pytest.mark.scheduled
@pytest.mark.parametrize("num_kv_heads", [8, 4], ids=["mha", "gqa"])
@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_logits_and_generated_tokens_are_those_of_one_device(
    attention_type, num_kv_heads, tmp_path
):
    original = saved_model(attention_type, tmp_path / "model", num_kv_heads).eval()
    ids = torch.randint(60, (2, 16))

    def run():
        with joined(), torch.no_grad():
            model = split(tmp_path / "model").eval()
            attention = model.model.layers[0].self_attn
            rows = attention.q_proj.weight.to_local().shape[0]
            logits = model(ids).logits
            tokens = model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
            return rows, logits, tokens

    with torch.no_grad():
        expected = original(ids).logits
        tokens = original.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
    for rows, logits, generated in values(launched(2, run)):
        assert 2 * rows == original.model.layers[0].self_attn.q_proj.weight.shape[0]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * expected.abs().max())
        assert torch.equal(generated, tokens)


@pytest.mark.scheduled
@pytest.mark.parametrize("options", [{}, {"qkv_bias": True, "qk_norm": True}], ids=["", "options"])
@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_gradients_are_those_of_one_device(attention_type, options, tmp_path):
    model = saved_model(attention_type, tmp_path / "model", 8, **options)
    ids = torch.randint(60, (2, 16))

    def run():
        with joined():
            model = split(tmp_path / "model")
            model(ids, labels=ids).loss.backward()
            return {name: whole(x.grad) for name, x in model.named_parameters()}

    model(ids, labels=ids).loss.backward()
    for gradients in values(launched(2, run)):
        for name, parameter in model.named_parameters():
            bound = 1e-4 * parameter.grad.abs().max()
            torch.testing.assert_close(
                gradients[name], parameter.grad, rtol=0, atol=bound, msg=name
            )


@pytest.mark.scheduled
@pytest.mark.parametrize(("attention_type", "num_kv_heads"), [("diff", 2), ("diff_v2", 1)])
def test_a_head_is_never_split(attention_type, num_kv_heads, tmp_path):
    assert saved_model(attention_type, tmp_path / "model", num_kv_heads).config.num_kv_heads == 1

    def run():
        with joined():
            split(tmp_path / "model")(torch.randint(60, (2, 16)))

    for kind, (_, message, _) in launched(2, run):
        assert kind == "raised"
        assert "unflatten" in message


@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_every_rule_names_something(attention_type):
    config = twin_config(attention_type, qkv_bias=True, qk_norm=True)
    with torch.device("meta"):
        model = DiffTransformerForCausalLM(config).model
    names = {name for name, _ in (*model.named_modules(), *model.named_parameters())}
    for rule in config.base_model_tp_plan:
        assert rule.replace("*", "0") in names
    heads = ("q_", "k_", "v_", "o_", "lambda_proj")
    split = {rule.split(".")[-1] for rule in config.base_model_tp_plan}
    attention = model.layers[0].self_attn
    for name, _ in (*attention.named_children(), *attention.named_parameters(recurse=False)):
        assert not name.startswith(heads) or name in split  # no projection of heads is left whole


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
def test_sharded_gradients_are_those_of_the_whole_model(
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
