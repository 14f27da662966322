"""Rows read over a cache equal those of whole maps."""

import pytest
import torch
from transformers import DynamicCache

from diffattn.errors import ConfigError, ShapeError
from diffattn.probes.attention_rows import LayerRows, attention_rows, segment_shares, segment_sums
from tensor_sizes import Sizes

LENGTH = 12
# Models are float64, but Hugging Face's eager kernel makes its softmax, and its norms their mean,
# in float32: a few roundings of weights up to 1 + |λ|.
ROUNDING = 32 * torch.finfo(torch.float32).eps


@pytest.fixture
def ids(input_ids):
    return input_ids[:1]


def cached(network, ids):
    cache = DynamicCache(config=network.config)
    if ids.shape[1]:
        with torch.no_grad():
            network(ids, past_key_values=cache, use_cache=True)
    return cache


@pytest.mark.parametrize("rows", [1, 3, LENGTH])
def test_rows_over_a_cache_equal_whole_maps(network, ids, rows):
    whole = attention_rows(network, ids)
    actual = attention_rows(network, ids[:, -rows:], cached(network, ids[:, :-rows]))
    assert len(actual) == len(whole) == 3
    for part, all_rows in zip(actual, whole, strict=True):
        assert part.signed.shape == (*all_rows.signed.shape[:1], rows, LENGTH)
        torch.testing.assert_close(part.signed, all_rows.signed[:, -rows:], rtol=0, atol=ROUNDING)
        torch.testing.assert_close(part.maps, all_rows.maps[:, :, -rows:], rtol=0, atol=ROUNDING)


def test_whole_maps_equal_those_of_the_model(network, ids):
    """Against what the model returns when it is asked in the usual way."""
    network.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = network(ids, output_attentions=True).attentions
    for rows, expected in zip(attention_rows(network, ids), attentions, strict=True):
        actual, expected = rows.signed, expected[0]
        if network.config.model_type == "diffllama":  # its maps: all of map 1, then all of map 2
            actual, expected = rows.maps, expected.unflatten(0, (2, -1)).transpose(0, 1)
        torch.testing.assert_close(actual, expected, rtol=0, atol=ROUNDING)


def test_the_output_of_diffllama_is_the_signed_map_times_v(make_model, ids):
    """DiffLlama: its heads before the norm are the signed map times both halves of V."""
    model = make_model("diffllama").eval()
    attention, seen = model.model.layers[0].self_attn, {}
    attention.v_proj.register_forward_hook(lambda m, args, out: seen.update(v=out))
    attention.groupnorm.register_forward_pre_hook(lambda m, args: seen.update(heads=args[0]))
    rows = attention_rows(model, ids)[0]
    halves = seen["v"][0].unflatten(-1, (2, 1, 8)).repeat_interleave(2, dim=2)  # [S, half, H, D]
    heads = torch.einsum("hts,snhd->thnd", rows.signed, halves).flatten(2)
    scale = float(halves.abs().max())
    torch.testing.assert_close(
        heads, seen["heads"][0].reshape(heads.shape), rtol=0, atol=LENGTH * ROUNDING * scale
    )


@pytest.mark.parametrize("kind", ["diff", "diffllama"])
def test_memory_grows_with_rows_times_keys(make_model, kind):
    network = make_model(kind).eval()
    ids = torch.randint(50, (1, 600), generator=torch.Generator().manual_seed(3))
    cache = cached(network, ids[:, :-2])
    with Sizes() as sizes:
        attention_rows(network, ids[:, -2:], cache)
    assert max(sizes.made) < 600 * 600 / 4


def test_other_shapes_of_ids_are_refused(make_model, ids):
    model = make_model("diff").eval()
    for wrong in (ids[0], ids[:, :0], ids.repeat(2, 1)):
        with pytest.raises(ShapeError, match=r"input_ids must be \[1, T\]"):
            attention_rows(model, wrong)


def test_a_sliding_window_is_refused(make_model, ids):
    model = make_model("mistral", sliding_window=4).eval()
    with pytest.raises(ConfigError, match="Sliding windows are not supported"):
        attention_rows(model, ids[:, -1:], cached(model, ids[:, :-1]))


MAP_1 = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.125, 0.125, 0.25, 0.5]])  # [H, S]
MAP_2 = torch.tensor([[0.25, 0.5, 0.0, 0.25], [0.25, 0.25, 0.25, 0.25]])
SPANS = [(0, 1), (1, 3), (3, 4), (3, 3), (0, 2)]


def layer(lam):
    """Two heads; a first row of zeros that must not be read."""
    maps = torch.stack([MAP_1, MAP_2], dim=1)[:, :, None]
    maps = torch.cat([torch.zeros_like(maps), maps], dim=2)
    return LayerRows(maps=maps, signed=maps[:, 0] - lam * maps[:, 1])


def test_sums():
    sums = segment_sums([layer(0.5), layer(1.0)], SPANS)
    assert {name: tuple(x.shape) for name, x in sums.items()} == dict.fromkeys(
        ["signed", "clipped", "absolute", "map_1", "map_2"], (2, 2, 5)
    )
    assert sums["map_1"][1, 0].tolist() == [0.5, 0.5, 0.0, 0.0, 0.75]
    assert sums["map_2"][0, 1].tolist() == [0.25, 0.5, 0.25, 0.0, 0.5]
    # λ = 1/2, head 0: 0.375, 0, 0.25, -0.125
    assert sums["signed"][0, 0].tolist() == [0.375, 0.25, -0.125, 0.0, 0.375]
    assert sums["clipped"][0, 0].tolist() == [0.375, 0.25, 0.0, 0.0, 0.375]
    assert sums["absolute"][0, 0].tolist() == [0.375, 0.25, 0.125, 0.0, 0.375]
    softmax = LayerRows(maps=MAP_1[:, None, None], signed=MAP_1[:, None])
    assert "map_2" not in segment_sums([softmax], SPANS)


def test_shares():
    sums = torch.tensor([[[1.0, 3.0, 2.0]], [[1.0, 0.0, 1.0]]])
    shares = segment_shares(sums, 2)  # the third span overlaps the others
    assert shares["global"] == pytest.approx([0.4, 0.6, 0.6])
    assert shares["row"] == pytest.approx([0.625, 0.375, 0.75])


@pytest.mark.parametrize("sums", [[[[1.0, -1.0]]], [[[1.0, 0.0]], [[-1.0, 0.0]]]])
def test_nothing_to_divide_by(sums):
    with pytest.raises(ConfigError, match="must not sum to 0"):
        segment_shares(torch.tensor(sums), 2)
