"""Sizes of activations, and λ, against what other ways of reading the model give."""

from itertools import pairwise

import pytest
import torch

from diffattn.probes.activations import (
    largest_logit,
    layer_activations,
    layer_lambdas,
    residual_writes,
)


@pytest.fixture
def ids():
    return torch.randint(50, (3, 24), generator=torch.Generator().manual_seed(1))


def test_they_are_those_of_the_forward_pass(make_model, attention_type, ids):
    model = make_model(attention_type).train()
    contexts, values = [], []
    hooks = [
        hook
        for block in model.model.layers
        for hook in (
            block.self_attn.head_norm.register_forward_hook(lambda m, x, y: contexts.append(x[0])),
            block.self_attn.v_proj.register_forward_hook(lambda m, x, y: values.append(y)),
        )
    ]
    with torch.no_grad():
        output = model.eval()(ids, use_cache=False, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    hooks = [len(block._forward_hooks) for block in model.model.layers]
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    model.train()
    rng = torch.get_rng_state()
    rows = layer_activations(model, ids)
    assert torch.equal(torch.get_rng_state(), rng)
    assert model.training
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())
    assert [len(block._forward_hooks) for block in model.model.layers] == hooks
    assert rows[0]["hidden_max"] == pytest.approx(float(output.hidden_states[1].abs().max()))
    for row, context, value in zip(rows, contexts, values, strict=True):
        if not attention_type.startswith(("gated", "dex")):  # measured before these act
            assert row["context_rms"] == pytest.approx(float(context.square().mean().sqrt()))
        assert row["value_rms"] == pytest.approx(float(value.square().mean().sqrt()))
    if model.config.attention.lambda_vectors and attention_type != "dex":
        for row, block in zip(rows, model.model.layers, strict=True):
            assert row["lam"] == row["lam_min"] == row["lam_max"] == block.self_attn.lam().item()
    elif attention_type == "diff_v2":
        assert all(0 < row["lam_min"] < row["lam"] < row["lam_max"] < 1 for row in rows)
    else:
        assert "lam" not in rows[0]


@pytest.mark.parametrize(("maps", "key_maps"), [((), ()), ((2,), (2,)), ((2,), ())], ids=str)
@pytest.mark.parametrize("block", [2**24, 24, 50])
def test_the_largest_logit_is_over_visible_keys_alone(maps, key_maps, block, monkeypatch):
    monkeypatch.setattr("diffattn.probes.activations._BLOCK_ENTRIES", block)
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(2, 10, 4, *maps, 8, generator=draw)
    k = torch.randn(2, 10, 2, *key_maps, 8, generator=draw)
    k[:, -1] = 0  # seen by the last query alone
    wide = k if key_maps or not maps else k[:, :, :, None].expand(-1, -1, -1, 2, -1)
    wide = wide.repeat_interleave(2, dim=2)
    logits = torch.einsum("bth...d,bsh...d->bh...ts", q, wide) * 8**-0.5
    seen = torch.ones(10, 10, dtype=torch.bool).tril()
    assert largest_logit(q, k) == pytest.approx(float(logits[..., seen].abs().max()))
    k[:, -1] = 1e4
    hidden = logits[..., seen].abs().max()
    assert largest_logit(q[:, :-1], k[:, :-1]) <= float(hidden) + 1e-5
    assert largest_logit(q, k) > 1e3


@pytest.mark.parametrize("block", [2**24, 50])
@pytest.mark.parametrize("attention_type", ["diff", "diff_v2"])
def test_documents_that_are_apart_are_measured_alone(
    make_model, attention_type, block, ids, monkeypatch
):
    monkeypatch.setattr("diffattn.probes.activations._BLOCK_ENTRIES", block)
    model = make_model(attention_type).eval()
    borders = [[0, 5, 6, 24], [0, 24], [0, 17, 24]]
    positions = torch.stack(
        [torch.cat([torch.arange(b - a) for a, b in pairwise(ends)]) for ends in borders]
    )
    documents = [
        row[None, a:b] for row, ends in zip(ids, borders, strict=True) for a, b in pairwise(ends)
    ]
    share = torch.tensor([x.shape[1] for x in documents]) / ids.numel()
    alone = [layer_activations(model, x) for x in documents]
    for number, row in enumerate(layer_activations(model, ids, positions)):
        values = {name: torch.tensor([rows[number][name] for rows in alone]) for name in row}
        for name in ("hidden_max", "logit_max", "lam_max"):
            assert row[name] == pytest.approx(float(values[name].max()), rel=1e-5)
        assert row["lam_min"] == pytest.approx(float(values["lam_min"].min()), rel=1e-5)
        assert row["lam"] == pytest.approx(float(share @ values["lam"]), rel=1e-5)
        for name in ("context_rms", "value_rms"):
            expected = float((share @ values[name].square()).sqrt())
            assert row[name] == pytest.approx(expected, rel=1e-5)
    lam = layer_lambdas(model, ids, positions)
    expected = share @ torch.tensor([layer_lambdas(model, x) for x in documents])
    assert lam == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.parametrize("read", [layer_activations, layer_lambdas, residual_writes])
def test_a_watched_model_makes_the_logits_of_no_more_than_one_token(make_model, ids, read):
    model, shapes = make_model("diff_v2"), []
    model.get_output_embeddings().register_forward_hook(lambda m, x, y: shapes.append(y.shape))
    read(model, ids)
    assert shapes == [(3, 1, 50)]


def test_a_model_without_attention_has_no_logits(make_model, ids):
    rows = layer_activations(make_model("none"), ids)
    assert set(rows[0]) == {"hidden_max", "logit_max", "value_rms", "context_rms"}


@pytest.mark.parametrize("at_once", [1, 2, 5])
@pytest.mark.parametrize("are_apart", [False, True])
@pytest.mark.parametrize("attention_type", ["softmax", "diff", "diff_v2"])
def test_windows_that_are_read_some_at_a_time_give_the_same(
    make_model, attention_type, are_apart, at_once, ids
):
    model, counts = make_model(attention_type), []
    model.model.embed_tokens.register_forward_hook(lambda m, x, y: counts.append(x[0].numel()))
    positions = torch.arange(24).remainder(10).expand(3, -1) if are_apart else None
    whole = layer_activations(model, ids, positions)
    lam = layer_lambdas(model, ids, positions)
    counts.clear()
    for expected, row in zip(
        whole, layer_activations(model, ids, positions, at_once=at_once), strict=True
    ):
        assert row == pytest.approx(expected, rel=1e-5)
    assert counts == [24 * min(at_once, 3 - start) for start in range(0, 3, at_once)]
    actual = layer_lambdas(model, ids, positions, at_once=at_once)
    assert actual == (None if lam is None else pytest.approx(lam, rel=1e-6))


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("broken", [0, 2])
def test_nan_in_a_single_window_reaches_the_result(make_model, broken, at_once, ids):
    model = make_model("softmax")
    model.model.embed_tokens.weight.data[7] = torch.nan
    ids[ids == 7] = 8
    ids[broken, 3] = 7
    rows = layer_activations(model, ids, at_once=at_once)
    assert all(torch.tensor(list(row.values())).isnan().all() for row in rows)


def test_v2_gives_the_mean_over_tokens_and_heads(make_model, ids):
    model = make_model("diff_v2").eval()
    seen = []
    for block in model.model.layers:
        block.input_layernorm.register_forward_hook(lambda m, args, out: seen.append(out))
    with torch.no_grad():
        model(ids)
    layers = [block.self_attn for block in model.model.layers]
    expected = [
        torch.sigmoid(x @ layer.lambda_proj.weight.T).mean().item()
        for x, layer in zip(seen, layers, strict=True)
    ]
    actual = layer_lambdas(model, ids)
    assert actual == pytest.approx(expected, abs=1e-6)
    assert actual != layer_lambdas(model, ids[:1, :2])
    assert all(0 < lam < 1 for lam in actual)


def test_softmax_has_none(make_model, ids):
    assert layer_lambdas(make_model("softmax"), ids) is None


def rms(x):
    return x.square().mean().sqrt().item()


def test_writes_equal_the_differences_of_hidden_states(make_model, attention_type, input_ids):
    """Against hidden states that Hugging Face records at the borders of the blocks."""
    model = make_model(attention_type)
    model.config.embedding_multiplier = 3.0
    rows = residual_writes(model, input_ids)
    assert model.training
    between = []
    hooks = [
        block.post_attention_layernorm.register_forward_pre_hook(lambda m, x: between.append(x[0]))
        for block in model.model.layers
    ]
    with torch.no_grad():
        model.eval()(input_ids)
        for hook in hooks:
            hook.remove()
        stream = model(input_ids, output_hidden_states=True).hidden_states[:3]
        blocks = zip(model.model.layers, between, strict=True)
        fed = [block.mlp(block.post_attention_layernorm(x)) for block, x in blocks]
    for row, before, after, last in zip(rows, stream, between, fed, strict=True):
        expected = {"stream": before, "attention": after - before, "between": after}
        expected["feed_forward"] = last
        assert row == pytest.approx({name: rms(x) for name, x in expected.items()}, rel=1e-4)
