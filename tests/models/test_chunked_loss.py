"""A loss computed in chunks is the loss, with its gradients, and keeps no logits."""

import pytest
import torch
import torch.nn.functional as F

from diffattn.models import chunked_loss
from diffattn.models.chunked_loss import chunked_token_losses, next_token_losses
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.window_losses import window_losses

EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def head_inputs(dtype, num_tokens=37, hidden_size=24, vocab_size=50):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, hidden_size, generator=generator, dtype=dtype)
    weight = torch.randn(vocab_size, hidden_size, generator=generator, dtype=dtype)
    targets = torch.randint(vocab_size, (num_tokens,), generator=generator)
    targets[::5] = chunked_loss.IGNORED
    return hidden.requires_grad_(), weight.requires_grad_(), targets


@pytest.mark.parametrize("dtype", EPS, ids=["fp32", "fp64"])
@pytest.mark.parametrize("chunk_tokens", [1, 8, 36, 37, 100])
def test_losses_and_gradients_are_those_of_the_whole(chunk_tokens, dtype):
    hidden, weight, targets = head_inputs(dtype)
    upstream = torch.randn(len(targets), dtype=dtype)

    def results(losses):
        return losses.detach(), *torch.autograd.grad(losses, (hidden, weight), upstream)

    whole = F.cross_entropy(F.linear(hidden, weight), targets, reduction="none")
    chunks = chunked_token_losses(hidden, lambda x: F.linear(x, weight), targets, chunk_tokens)
    for actual, expected in zip(results(chunks), results(whole), strict=True):
        # The products are sums of up to 50 terms, taken in another order.
        bound = 2 * 50 * EPS[dtype] * expected.abs().max().item()
        torch.testing.assert_close(actual, expected, rtol=0, atol=bound)


def test_logits_of_one_chunk_exist_at_a_time():
    hidden, weight, targets = head_inputs(torch.float32)
    sizes, kept = [], []

    def head(part):
        sizes.append(len(part))
        return F.linear(part, weight)

    def pack(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses = chunked_token_losses(hidden, head, targets, 8)
    assert sizes == [8, 8, 8, 8, 5]
    assert max(kept, default=0) < 8 * 50  # not even a chunk's logits wait for the backward pass
    losses.sum().backward()
    assert sorted(sizes) == sorted([8, 8, 8, 8, 5] * 2)


def test_the_successor_of_each_token_is_predicted():
    hidden = torch.eye(4)[None]
    labels = torch.tensor([[3, 0, chunked_loss.IGNORED, 2]])
    losses = next_token_losses(hidden, lambda x: 10 * x, labels, 3)
    assert losses[0, 0].item() == pytest.approx(F.cross_entropy(10 * hidden[0, 0], labels[0, 1]))
    assert losses[0, [1, 3]].tolist() == [0, 0]  # ignored, and without successor
    assert 0 < losses[0, 2].item() < 1e-3  # label 2 follows, where the logit is 10


@pytest.fixture
def model():
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2}
    config = DiffTransformerConfig(head_dim=8, max_position_embeddings=16, **sizes)
    return DiffTransformerForCausalLM(config)


@pytest.mark.parametrize("num_items", [None, 20], ids=["mean", "of a larger batch"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
def test_a_model_gives_the_same_loss_and_gradients(num_items, autocast, model):
    ids = torch.randint(60, (3, 16))
    labels = ids.masked_fill(ids < 6, chunked_loss.IGNORED)

    def run(chunk_tokens):
        model.loss_chunk_tokens = chunk_tokens
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = model(ids, labels=labels, num_items_in_batch=num_items)
        output.loss.backward()
        return output, torch.cat([p.grad.flatten() for p in model.parameters()])

    (whole, expected), (chunks, gradients) = run(None), run(10)
    assert (whole.token_losses, chunks.logits) == (None, None)
    assert chunks.loss.dtype == torch.float32
    rounding = 2.0 ** (-7 if autocast else -21)
    assert chunks.loss.item() == pytest.approx(whole.loss.item(), rel=2.0**-20)
    assert (gradients - expected).norm() < rounding * expected.norm()


@pytest.mark.parametrize("num_items", [None, 20], ids=["mean", "of a larger batch"])
def test_shifted_labels_come_before_labels(num_items, model):
    """As a trainer gives them that splits rows: the last token of a part has a successor."""
    ids, shifted = torch.randint(60, (2, 3, 16))
    shifted[:, :5] = chunked_loss.IGNORED
    options = {"labels": ids, "shift_labels": shifted, "num_items_in_batch": num_items}
    whole = model(ids, **options).loss
    model.loss_chunk_tokens = 10
    chunks = model(ids, **options)
    assert chunks.loss.item() == pytest.approx(whole.item(), rel=2.0**-20)
    assert ((chunks.token_losses == 0) == (shifted == chunked_loss.IGNORED)).all()


def test_evaluation_reads_the_same_losses(model):
    ids = torch.randint(60, (3, 16))
    whole = window_losses(model, ids)
    model.loss_chunk_tokens = 7
    assert window_losses(model, ids) == pytest.approx(whole, rel=1e-6)
    assert whole.shape == (3, 15)
