"""One pass in fixed memory finds what sorting all activations finds."""

import json

import numpy as np
import pytest
import scipy.stats
import torch

from diffattn.errors import DiffAttnError
from diffattn.probes.layer_reader import logit_rows, read_layers
from diffattn.probes.outliers import (
    HIDDEN,
    LOGITS,
    MAP_1,
    MAP_2,
    MEDIAN_ERROR,
    WITH,
    WITHOUT,
    OutlierScan,
    Tally,
    layer_rows,
    merged,
    outlier_summary,
    pooled,
)


def places(index):
    return index[:, None]


def tally_of(x, size=1000):
    """A tally that was given ``x`` piece by piece."""
    tally = Tally(1)
    for start in range(0, len(x), size):
        tally.add(x[start : start + size], lambda index, start=start: places(index + start))
    return tally


@pytest.fixture(params=["normal", "heavy", "tiny", "few", "zeros", "equal"])
def numbers(request):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(30_011, generator=generator, dtype=torch.float64).float()
    return {
        "normal": x, "heavy": x**5 * 100, "tiny": x * 1e-30, "few": x[:7],
        "zeros": torch.where(x > 1, x, 0.0), "equal": torch.full((500,), 3.3),
    }[request.param]  # fmt: skip


def test_a_tally_finds_what_sorting_finds(numbers):
    tally = tally_of(numbers)
    sizes, _ = numbers.abs().double().sort(descending=True, stable=True)
    assert tally.count == len(numbers)
    assert torch.equal(tally.values, sizes[:100])
    assert tally.largest == sizes[0]
    assert torch.equal(numbers[tally.places[:, 0]].abs().double(), sizes[:100])
    median = float(numbers.abs().median())
    assert abs(tally.median - median) <= 1.001 * MEDIAN_ERROR * median
    massive = (numbers.abs() > max(100, 1000 * tally.median)).sum()
    assert abs(tally.massive - int(massive)) <= int(tally.histogram.max() if massive else 0)
    if tally.kurtosis is None:
        assert numbers.std() < 1e-6
    else:
        expected = scipy.stats.kurtosis(numbers.double().numpy(), fisher=False)
        assert tally.kurtosis == pytest.approx(expected, rel=1e-9)


def test_massive_activations_are_counted_exactly_at_100():
    x = torch.cat([torch.full((1000,), 0.05), torch.tensor([99.9, 100.1, -500.0])])
    assert tally_of(x).massive == 2
    x = torch.cat([torch.full((1000,), 0.5), torch.tensor([450.0, 550.0, -5000.0])])
    assert tally_of(x).massive == 2  # 1,000 medians are 500


def test_pieces_merged_and_written_are_the_whole(numbers):
    half = len(numbers) // 2
    parts = [tally_of(numbers[:half]), Tally(1)]
    parts[1].add(numbers[half:], lambda index: places(index + half))
    written = [Tally.from_json(json.loads(json.dumps(part.to_json())), 1) for part in parts]
    whole = tally_of(numbers)
    for actual in (merged(parts), merged(written)):
        assert torch.equal(actual.values, whole.values)
        assert torch.equal(actual.histogram, whole.histogram)
        assert actual.count == whole.count
        torch.testing.assert_close(actual.powers, whole.powers, rtol=1e-12, atol=0)


def scan_of(model, windows, entries=1000):
    scan = OutlierScan()
    for number, ids in enumerate(windows):
        tokens = ids[0]

        def on_attention(layer, inputs, tokens=tokens, number=number):
            for rows in logit_rows(inputs, entries):
                scan.add_logits(layer, inputs, rows, tokens, number)

        def on_hidden(layer, x, tokens=tokens, number=number):
            scan.add_hidden(layer, x, tokens, number)

        read_layers(model, ids, on_attention, on_hidden)
    return scan


def brute_force(model, windows):
    """All activations at once, from the maps' own definition."""
    logits, hidden = {}, {}
    for ids in windows:

        def on_attention(layer, inputs):
            q, k = inputs.q.double(), inputs.k.double()
            k = k.repeat_interleave(q.shape[1] // k.shape[1], 1).expand(q.shape)
            scores = torch.einsum("thmd,shmd->hmts", q, k) * inputs.scale
            past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            later = past.clone()
            later[:, 0] = False
            for number in range(q.shape[2]):
                for without, shown in ((False, past), (True, later)):
                    actual = logits.setdefault((layer, number, without), [])
                    actual.append(scores[:, number][:, shown].flatten())

        def on_hidden(layer, x):
            for without in (False, True):
                hidden.setdefault((layer, without), []).append(x[without:].double().flatten())

        read_layers(model, ids, on_attention, on_hidden)
    logits = {key: torch.cat(x) for key, x in logits.items()}
    return logits, {key: torch.cat(x) for key, x in hidden.items()}


def check(row, x, scale=1.0):
    sizes = x.abs().sort(descending=True).values.numpy() / scale
    assert row["count"] == len(sizes)
    for rank, value in row["top"].items():
        assert value == pytest.approx(sizes[int(rank) - 1], rel=1e-5)
    assert row["median"] == pytest.approx(np.median(sizes), rel=MEDIAN_ERROR + 1e-3)
    assert row["kurtosis"] == pytest.approx(scipy.stats.kurtosis(x.numpy(), fisher=False), rel=1e-3)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("softmax", marks=pytest.mark.scheduled),
        "diff",
        pytest.param("diff_v2", marks=pytest.mark.scheduled),
    ],
)
def test_a_scan_equals_brute_force(make_model, kind):
    model = make_model(kind).eval()
    generator = torch.Generator().manual_seed(5)
    # The last ones are short: a text of one token has position 0 alone.
    windows = [torch.randint(50, (1, n), generator=generator) for n in (40, 40, 3, 1)]
    scan = scan_of(model, windows)
    logits, hidden = brute_force(model, windows)
    layers, maps = range(3), range(1 if kind == "softmax" else 2)
    actual = outlier_summary(pooled(scan), model.config.head_dim**-0.5, lambda token: f"t{token}")
    for without, which in ((False, WITH), (True, WITHOUT)):
        every = [[logits[layer, m, without] for layer in layers] for m in maps]
        check(actual[LOGITS][which], torch.cat([x for of_map in every for x in of_map]))
        raw = actual[f"{LOGITS} before scaling"][which]
        check(raw, torch.cat([x for of_map in every for x in of_map]) * model.config.head_dim**0.5)
        if kind != "softmax":
            check(actual[MAP_1][which], torch.cat(every[0]))
            check(actual[MAP_2][which], torch.cat(every[1]))
        check(actual[HIDDEN][which], torch.cat([hidden[layer, without] for layer in layers]))
        for layer, row in enumerate(layer_rows(scan)):
            of_layer = torch.cat([logits[layer, m, without] for m in maps])
            assert row[LOGITS][which]["largest"] == pytest.approx(float(of_layer.abs().max()))
            of_layer = hidden[layer, without]
            assert row[HIDDEN][which]["largest"] == pytest.approx(float(of_layer.abs().max()))
    assert (MAP_1 in actual) == (kind != "softmax")


def test_the_largest_are_named(make_model):
    """A channel and a token that were made large are what is found."""
    model = make_model("diff").eval()
    with torch.no_grad():
        model.model.embed_tokens.weight[7, 5] = 1e3
    ids = torch.tensor([[3, 4, 7, 9]])
    actual = outlier_summary(pooled(scan_of(model, [ids])), None, lambda token: f"t{token}")
    largest = actual[HIDDEN][WITH]["largest"][0]
    assert (largest["channel"], largest["position"], largest["token"]) == (5, 2, "t7")
    assert largest["text"] == 0
    assert actual[HIDDEN][WITH]["massive"] == 0  # a thousand medians are more
    top = actual[LOGITS][WITH]["largest"][0]
    assert top["map"] in (1, 2)
    assert top["key"] <= top["query"]
    assert top["query_token"] == f"t{int(ids[0, top['query']])}"
    assert "attention logits before scaling" not in actual  # no common factor was given


def test_a_broken_model_is_refused(make_model):
    model = make_model("diff").eval()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    with pytest.raises(DiffAttnError, match="hidden states of layer 1 must be finite"):
        scan_of(model, [torch.tensor([[3, 4]])])
