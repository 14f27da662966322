"""Saving and loading: bit for bit, λ in float32, and clear about damage."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from diffattn.errors import CheckpointError
from diffattn.layers.parts import LAMBDA_NAMES
from diffattn.models.loading import bfloat16_advice, load_model
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from model_folders import edit_weights


@torch.no_grad()
def logits(model, ids):
    return model(ids).logits


@pytest.mark.parametrize(
    ("loader", "shard_size"),
    [(DiffTransformerForCausalLM, "8KB"), (AutoModelForCausalLM, "1GB")],
    ids=["shards", "auto"],
)
def test_logits_are_the_same_bits(model, tmp_path, ids, loader, shard_size):
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_size == "8KB")
    loaded = loader.from_pretrained(tmp_path)
    assert type(loaded) is DiffTransformerForCausalLM
    assert not loaded.training
    assert torch.equal(logits(loaded, ids), logits(model, ids))
    before, after = model.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings_are_written_once(make_config, build, tmp_path, ids, tied):
    model = build(make_config("diff", tie_word_embeddings=tied))
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert "model.embed_tokens.weight" in written
    assert ("lm_head.weight" in written) is not tied
    loaded = DiffTransformerForCausalLM.from_pretrained(tmp_path)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied
    assert torch.equal(logits(loaded, ids), logits(model, ids))


@pytest.mark.parametrize("kind", ["diff", "shared_diff"])
def test_lambda_stays_float32_in_a_bfloat16_model(make_config, build, tmp_path, ids, kind):
    model = build(make_config(kind))
    model.save_pretrained(tmp_path / "float32")
    loaded = DiffTransformerForCausalLM.from_pretrained(tmp_path / "float32", dtype=torch.bfloat16)
    for name, parameter in loaded.named_parameters():
        is_lambda = name.rsplit(".", 1)[-1] in LAMBDA_NAMES
        assert parameter.dtype == (torch.float32 if is_lambda else torch.bfloat16), name
    for before, after in zip(model.model.layers, loaded.model.layers, strict=True):
        assert after.self_attn.lam().dtype == torch.float32
        assert torch.equal(after.self_attn.lam(), before.self_attn.lam())
    assert logits(loaded, ids).isfinite().all()

    loaded.save_pretrained(tmp_path / "bfloat16")
    written = load_file(tmp_path / "bfloat16" / "model.safetensors")
    assert written["model.layers.0.self_attn.lambda_q1"].dtype == torch.float32
    assert written["model.layers.0.self_attn.q_proj.weight"].dtype == torch.bfloat16
    again = DiffTransformerForCausalLM.from_pretrained(tmp_path / "bfloat16", dtype="auto")
    assert torch.equal(logits(again, ids), logits(loaded, ids))


DOWN = "model.layers.1.mlp.down_proj.weight"
MORE = "model.layers.2.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda weights: weights.pop(DOWN), f"no {DOWN}"),
        (lambda w: w.update({DOWN: w[DOWN][:, 1:].contiguous()}), f"another shape of {DOWN}"),
        (lambda weights: weights.update({MORE: weights[DOWN].clone()}), f"also {MORE}"),
    ],
)
def test_weights_that_a_model_would_make_up_or_leave_out(change, got, make_config, build, tmp_path):
    build(make_config()).save_pretrained(tmp_path)
    edit_weights(tmp_path, change)
    with pytest.raises(CheckpointError, match=rf"got {got} \(1 such names\)\.$"):
        load_model(str(tmp_path))


def test_bfloat16_on_a_cpu_without_instructions_for_it_is_advised_against(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    cpu = torch.device("cpu")
    assert bfloat16_advice(cpu, torch.bfloat16, "--dtype float32").endswith("use --dtype float32")
    assert bfloat16_advice(cpu, torch.float32, "") is None
    assert bfloat16_advice(torch.device("cuda"), torch.bfloat16, "") is None
