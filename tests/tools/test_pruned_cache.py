"""Dropped keys are those that the policy names, and nothing else changes; scores of tasks."""

import pytest
import torch

from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from tools.caches.pruned import POLICIES, chosen_keys, dropping, logits_after, pruned_cache
from tools.caches.tasks import score

PROMPT, LENGTH = 12, 17
TYPES = ["softmax", "diff", "diff_v2"]


@pytest.fixture(params=TYPES)
def model(request):
    torch.manual_seed(0)
    config = DiffTransformerConfig(
        attention_type=request.param, vocab_size=30, hidden_size=32, intermediate_size=32,
        num_hidden_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, initializer_range=0.3,
    )  # fmt: skip
    return DiffTransformerForCausalLM(config).double().eval()


def tokens():
    return torch.randint(1, 30, (3, LENGTH), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def through_a_mask(model, hidden):
    """One pass where the tokens after the prompt do not see its first ``hidden`` tokens."""
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    seen[PROMPT:, :hidden] = False
    return model(tokens(), attention_mask=seen[None, None]).logits[:, PROMPT:].float()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_whole_share_changes_nothing(model, policy):
    with dropping(model, policy, share=1.0):
        logits = logits_after(model, tokens(), PROMPT, pruned_cache())
    torch.testing.assert_close(logits, through_a_mask(model, hidden=0))


def test_dropped_keys_are_as_if_masked(model):
    with dropping(model, "window", share=1 / 3):
        logits = logits_after(model, tokens(), PROMPT, pruned_cache())
    torch.testing.assert_close(logits, through_a_mask(model, hidden=8))
    assert not torch.allclose(logits, through_a_mask(model, hidden=0))


@pytest.mark.parametrize(
    ("policy", "kept"), [("signed", [1, 4, 5]), ("absolute", [0, 4, 5]), ("window", [3, 4, 5])]
)
def test_policies_choose_by_their_scores(policy, kept):
    maps = torch.zeros(1, 2, 2, 6)
    maps[0, 0, 0] = torch.tensor([-9.0, 2.0, 0.0, 0.0, 0.0, 0.0])
    maps[0, 1, 1] = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.0, 0.0])
    chosen = chosen_keys(maps, 1, policy, 3, torch.Generator())
    assert chosen.tolist() == [[kept]]


def test_chance_differs_by_head_and_keeps_the_most_recent():
    chosen = chosen_keys(torch.zeros(2, 4, 2, 60), 2, "random", 10, torch.Generator())
    assert chosen[0, 0].tolist() != chosen[0, 1].tolist()
    assert (chosen[..., -5:] == torch.arange(55, 60)).all()


def test_scores_are_accuracy_and_nats_of_the_labels():
    labels = torch.tensor([[0, 1], [1, 1]])
    logits = torch.tensor([[[3.0, 1.0], [3.0, 1.0]], [[1.0, 3.0], [1.0, 3.0]]])
    assert score("recall", logits, labels) == 0.75
    right, wrong = torch.tensor([3.0, 1.0]).log_softmax(0).neg().tolist()
    assert abs(score("text", logits, labels) - (3 * right + wrong) / 4) < 1e-6
