"""A folded Shared DIFF model computes the same as a V1 model."""

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.conversion.our_model import fold_shared


@pytest.fixture
def model(make_config, build):
    """``model(kind, **settings)``."""
    return lambda kind="shared_diff", **settings: build(make_config(kind, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"shared_rank": 1, "head_norm": False, "tie_word_embeddings": False},
        {"num_kv_heads": 4, "qkv_bias": True, "qk_norm": True},
    ],
)
def test_the_same_logits_and_tokens(settings, model):
    shared = model(**settings).double()
    folded = fold_shared(shared)
    assert folded.config.attention_type == "diff"
    ids = torch.arange(12)[None]
    with torch.no_grad():
        torch.testing.assert_close(folded(ids).logits, shared(ids).logits, rtol=0, atol=1e-12)
    options = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(folded.generate(ids, **options), shared.generate(ids, **options))


def test_it_computes_losses_stops_and_samples_as_the_original(model):
    shared = model()
    shared.loss_chunk_tokens = 5
    shared.generation_config.update(eos_token_id=[7], temperature=0.3, do_sample=True)
    folded = fold_shared(shared)
    assert folded.loss_chunk_tokens == 5
    assert folded.generation_config.to_dict() == shared.generation_config.to_dict()
    folded.generation_config.eos_token_id.append(8)
    assert shared.generation_config.eos_token_id == [7]


def test_other_types_are_refused(model):
    with pytest.raises(ConfigError, match="must be of Shared DIFF, got 'diff'"):
        fold_shared(model("diff"))
