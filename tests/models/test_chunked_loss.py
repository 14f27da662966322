"""A loss computed in chunks is the loss, with its gradients, and keeps no logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from diffattn.errors import BackendError
from diffattn.models import chunked_loss
from diffattn.models.chunked_loss import chunked_token_losses, mean_loss
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.passes import window_losses

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


@pytest.fixture
def model(make_config):
    return DiffTransformerForCausalLM(make_config("diff", vocab_size=60, num_hidden_layers=1))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("most_logits", [2**29, 8 * 50])
@pytest.mark.parametrize("count", [None, 50])
def test_gradients_come_with_the_loss(count, most_logits, autocast, dtype, monkeypatch):
    monkeypatch.setattr(chunked_loss, "MOST_LOGITS", most_logits)
    hidden, weight, labels = head_inputs(torch.float32)
    head = nn.Linear(24, 50, bias=False)
    head.weight = nn.Parameter(weight.detach().to(torch.float32 if autocast else dtype))
    hidden = hidden.detach().to(dtype)[None].requires_grad_()
    inputs, upstream = (hidden, head.weight), 1 / 3
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss, losses = mean_loss(hidden, head, labels[None], None, count)
    assert losses.requires_grad is False
    actual = loss, *torch.autograd.grad(loss * upstream, inputs)

    wide = [x.detach().double().requires_grad_() for x in inputs]
    following = F.pad(labels[1:], (0, 1), value=chunked_loss.IGNORED)
    options = {"ignore_index": chunked_loss.IGNORED, "reduction": "sum"}
    loss = F.cross_entropy(F.linear(wide[0][0], wide[1]), following, **options)
    total = loss.detach().item()
    loss = loss / (count or (following != chunked_loss.IGNORED).sum())
    expected = loss, *torch.autograd.grad(loss * upstream, wide)
    eps = 2.0**-8 if autocast or dtype == torch.bfloat16 else 2.0**-23
    for x, y in zip(actual, expected, strict=True):
        # Inputs, logits, probabilities, two products and the sum of chunks are rounded.
        assert (x.double() - y).norm() <= 8 * eps * y.norm()
    assert losses.sum().item() == pytest.approx(total, rel=8 * eps)


def test_no_product_with_the_head_is_computed_again(monkeypatch):
    monkeypatch.setattr(chunked_loss, "MOST_LOGITS", 8 * 50)
    sizes, linear = [], F.linear
    monkeypatch.setattr(F, "linear", lambda x, w: (sizes.append(len(x)), linear(x, w))[1])
    hidden, _, labels = head_inputs(torch.float32)
    head = nn.Linear(24, 50, bias=False)
    loss, _ = mean_loss(hidden[None], head, labels[None], None)
    with pytest.raises(BackendError, match="second derivatives need skip_logits=False"):
        torch.autograd.grad(loss, [hidden], create_graph=True)
    loss.backward()
    assert sizes == [8, 8, 8, 8, 5]


@pytest.mark.parametrize("watched", [False, True])
def test_a_gpu_trains_without_logits_unless_its_head_is_watched(watched, model, monkeypatch):
    ids = torch.randint(60, (3, 16))
    model.train().skips_logits = True
    expected = model(ids, labels=ids)  # on a CPU
    assert expected.logits.shape == (3, 16, 60)
    monkeypatch.setattr(chunked_loss, "_is_gpu", lambda x: True)
    if watched:
        model.lm_head.register_forward_hook(lambda *arguments: None)
    actual = model(ids, labels=ids)
    assert (actual.logits is None, actual.token_losses is None) == (not watched, watched)
    assert actual.loss.detach().item() == pytest.approx(expected.loss.item(), rel=2.0**-20)
    assert model(ids, labels=ids, skip_logits=False).logits is not None
    assert model.eval()(ids, labels=ids).logits is not None
    model.train().skips_logits = False  # TRL and callbacks of users read the logits of a step
    assert model(ids, labels=ids).logits is not None
    assert (model(ids, labels=ids, skip_logits=True).logits is None) == (not watched)
