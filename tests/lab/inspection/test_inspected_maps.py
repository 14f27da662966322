"""What a page gets of a model is what the model computes, within half a step of its bytes."""

import numpy as np
import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.lab.inspection import maps
from diffattn.lab.inspection.maps import viewed_layers
from diffattn.lab.report.viewer.values import to_weights
from diffattn.probes.attention_rows import LayerRows, attention_rows, segment_sums
from lab.report.viewer.viewed_models import half_step

IDS = [0, 40, 41, 42, 43, 44, 40, 41, 260]
LENGTH = len(IDS)
ROWS, COLUMNS = np.tril_indices(LENGTH)
# λ is read off maps of float64 by a quotient of sums of LENGTH products, and kept in float32.
LAMBDA_ROUNDING = 4 * LENGTH * np.finfo(np.float32).eps


def lambda_of_rows(rows):
    """[H, T], by what rows of the signed map lack of 1."""
    return (1 - rows.signed.sum(-1)).double().numpy()


@pytest.mark.parametrize(
    "kind", ["softmax", "diff", "diff_v2", "shared_diff", "llama", "diffllama"]
)
@pytest.mark.parametrize("fine", [True, False])
def test_bytes_and_lambda_give_the_models_maps(models, kind, fine, monkeypatch):
    model = models[kind]
    if not fine:
        monkeypatch.setattr(maps, "_ROW_SCALES_UP_TO", 0)
    expected = attention_rows(model.network, torch.tensor([IDS]))
    layers = viewed_layers(model, IDS)
    assert [layer.index for layer in layers] == [0, 1]
    for layer, rows in zip(layers, expected, strict=True):
        assert (layer.scales is not None) == fine
        weights = to_weights(layer.codes, layer.scales)
        steps = half_step(layer.codes, layer.scales)
        exact = rows.maps.double().numpy()[..., ROWS, COLUMNS]
        rounding = 32 * np.finfo(np.float32).eps  # of the scales, and of eager's softmax
        assert (np.abs(weights - exact) <= steps + rounding).all()
        assert layer.error == pytest.approx(np.abs(weights - exact).max(), rel=1e-6)
        signed = rows.signed.double().numpy()[..., ROWS, COLUMNS]
        if layer.lam is None:
            assert kind in ("softmax", "llama")
            continue
        per_token = kind == "diff_v2"
        assert layer.lam.shape == ((len(signed), LENGTH) if per_token else (1, 1))
        assert np.abs(layer.lam - lambda_of_rows(rows)).max() < LAMBDA_ROUNDING
        lam = np.broadcast_to(layer.lam, (len(signed), LENGTH))[:, ROWS]
        off = np.abs(weights[:, 0] - lam * weights[:, 1] - signed)
        assert (off <= steps[:, 0] + np.abs(lam) * steps[:, 1] + LAMBDA_ROUNDING).all()


@pytest.mark.parametrize("sought", [None, (2, 4)])
def test_the_clearest_weight_of_the_last_query(models, sought):
    model = models["diff"]
    first, end = sought or (1, LENGTH - 3)
    layers = viewed_layers(model, IDS, sought=sought)
    for layer, rows in zip(layers, attention_rows(model.network, torch.tensor([IDS])), strict=True):
        weight, head, key = layer.clearest
        assert first <= key < end
        assert weight == rows.signed[head, -1, key] == rows.signed[:, -1, first:end].max()
    assert viewed_layers(model, IDS[:1])[0].clearest[1:] == (0, 0)


def test_sums_over_segments_are_those_of_the_protocol(models):
    model, spans = models["diff_v2"], [(0, 1), (1, 4), (4, 4), (4, 7), (7, 9)]
    rows = attention_rows(model.network, torch.tensor([IDS]))
    layers = viewed_layers(model, IDS, spans=spans)
    for query in (0, 5, LENGTH - 1):
        until = slice(query + 1)
        of_row = segment_sums(
            [LayerRows(maps=x.maps[:, :, until], signed=x.signed[:, until]) for x in rows], spans
        )
        for kind, name in enumerate(("map_1", "map_2", "absolute")):
            results = np.stack([layer.sums[kind, :, query] for layer in layers])
            assert np.abs(results - of_row[name].numpy()).max() < 1e-12


@pytest.mark.parametrize("kind", ["none", "shared_diff_map_norm"])
def test_controls_whose_maps_do_not_act_are_refused(build, kind):
    model = build(kind)
    with pytest.raises(ConfigError, match=r"got attention_type 'none'|must be A1 - λ A2, got one"):
        viewed_layers(model, IDS)


def test_controls_with_a_constant_lambda(build):
    layer = viewed_layers(build("diff_v2_constant"), IDS)[0]
    assert layer.lam.shape == (1, 1)
    assert layer.lam[0, 0] == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("layers", [(-1,), (0, 5)])
def test_layers_that_are_not_there(models, layers):
    with pytest.raises(ConfigError, match=f"layers must be from 0 to 1, got {layers[-1]}"):
        viewed_layers(models["diff"], IDS, layers=layers)


def test_too_many_weights_are_refused_before_the_model_runs(models):
    message = r"100,000,000 weights, got 720 of 2 layers, 8 maps and 9 tokens besides the other"
    with pytest.raises(ConfigError, match=message):
        viewed_layers(models["diff_v2"], IDS, room=719)
    assert viewed_layers(models["diff_v2"], IDS, room=720)


def test_maps_that_see_later_tokens_are_refused(models, monkeypatch):
    uniform = torch.full((2, 1, 3, 3), 1 / 3)
    rows = [LayerRows(maps=uniform, signed=uniform[:, 0])] * 2
    monkeypatch.setattr(maps, "attention_rows", lambda network, ids: list(rows))
    with pytest.raises(ConfigError, match="attention must be causal"):
        viewed_layers(models["softmax"], IDS[:3])
