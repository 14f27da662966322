"""A folded Shared DIFF model computes the same as a V1 model."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.folding import fold_shared
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM


def model(kind="shared_diff", **settings):
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 4}
    config = DiffTransformerConfig(attention_type=kind, head_dim=8, **sizes, **settings)
    return DiffTransformerForCausalLM(config).eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_kv_heads": 2},
        {"shared_rank": 1, "head_norm": False},
        {"tie_word_embeddings": False},
        {"qkv_bias": True, "qk_norm": True},
    ],
)
def test_the_same_logits_and_tokens(settings):
    shared = model(**settings).double()
    folded = fold_shared(shared)
    assert folded.config.attention_type == "diff"
    ids = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(folded(ids).logits, shared(ids).logits, rtol=0, atol=1e-13)
    options = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(folded.generate(ids, **options), shared.generate(ids, **options))


def test_lambda_stays_float32_and_the_original_as_it_was():
    shared = model().to(torch.bfloat16)
    before = {name: value.clone() for name, value in shared.state_dict().items()}
    folded = fold_shared(shared)
    lambdas = [p.dtype for name, p in folded.named_parameters() if "lambda" in name]
    assert lambdas
    assert set(lambdas) == {torch.float32}
    assert folded.dtype == torch.bfloat16
    with torch.no_grad():
        folded.model.norm.weight.zero_()
    assert all(torch.equal(shared.state_dict()[name], value) for name, value in before.items())


def test_it_computes_losses_stops_and_samples_as_the_original():
    shared = model()
    shared.loss_chunk_tokens = 5
    shared.generation_config.update(eos_token_id=[7], temperature=0.3, do_sample=True)
    folded = fold_shared(shared)
    assert folded.loss_chunk_tokens == 5
    assert folded.generation_config.to_dict() == shared.generation_config.to_dict()
    folded.generation_config.eos_token_id.append(8)
    assert shared.generation_config.eos_token_id == [7]


def test_other_types_are_refused():
    with pytest.raises(ConfigError, match="must be of Shared DIFF, got 'diff'"):
        fold_shared(model("diff"))
