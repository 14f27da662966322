"""The head of classifiers and reward models."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from diffattn.models.modeling_diff_transformer import DiffTransformerForSequenceClassification


@pytest.fixture
def model(attention_type, make_config, build, tmp_path):
    """The decoder of a language model under a fresh head: how a reward model begins."""
    build(make_config(attention_type, pad_token_id=0)).save_pretrained(tmp_path / "decoder")
    torch.manual_seed(1)
    return AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "decoder", num_labels=3, attn_implementation="diffattn"
    ).eval()


def test_scores_are_those_of_the_last_real_token(model, ids):
    assert type(model) is DiffTransformerForSequenceClassification
    padded, mask = ids.clone(), torch.ones_like(ids)
    padded[0, 7:] = mask[0, 7:] = 0
    with torch.no_grad():
        scores = model(padded, attention_mask=mask).logits
        hidden = model.model(ids).last_hidden_state
        expected = torch.stack([hidden[0, 6], hidden[1, 10]]) @ model.score.weight.T
    assert scores.shape == (2, 3)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-4)


def test_it_trains_and_survives_a_folder(model, ids, tmp_path):
    model(ids, labels=torch.tensor([0, 2])).loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    model.save_pretrained(tmp_path / "classifier")
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier")
    assert loaded.config.num_labels == 3
    with torch.no_grad():
        assert torch.equal(loaded.eval()(ids).logits, model(ids).logits)
