"""Every quantity against full eager maps in float64, of texts of any length, padded or not."""

import itertools
import math

import pytest
import torch

from diffattn.lab.analysis.attention import DISTANCES, HeadCka, LayerAttention, uniform_masses
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.layer_reader import AttentionInputs, logit_rows, read_layers
from tensor_sizes import Sizes

KINDS = ["softmax", "diff", "diff_v2", "shared_diff", "llama", "diffllama"]
LENGTHS = (11, 5, 2, 1)
# Models are float64, but Hugging Face's norms and eager softmax work in float32.
ROUNDING = 1e-5


@pytest.fixture(
    params=[
        pytest.param(kind, marks=() if kind == "diff_v2" else pytest.mark.scheduled)
        for kind in KINDS
    ]
)
def network(request, build):
    """V2, whose λ differs from token to token, at every push."""
    return build(request.param, dtype=torch.float64).network


@pytest.fixture
def texts():
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(1, 50, (1, n), generator=generator) for n in LENGTHS]


def statistics(network, texts, entries):
    """Results per layer by blocks of rows."""
    layers = {}
    for ids in texts:

        def add(layer, inputs):
            _, heads, maps, _ = inputs.q.shape
            of = layers.setdefault(layer, LayerAttention(heads, maps))
            of.add(inputs, logit_rows(inputs, entries))

        read_layers(network, ids, add)
    return [layers[layer].result() for layer in sorted(layers)]


def full_maps(network, texts):
    """Per layer and text: A1, A2, A and λ from the model's own eager maps of a padded batch."""
    longest = max(LENGTHS)
    padded = torch.cat([torch.nn.functional.pad(ids, (0, longest - ids.shape[1])) for ids in texts])
    mask = torch.cat([(torch.arange(longest) < ids.shape[1])[None] for ids in texts]).long()
    ours = isinstance(network, DiffTransformerForCausalLM)
    network.set_attn_implementation("eager")
    contexts = []
    for layer in network.model.layers:
        of = layer.self_attn
        module = of.head_norm if ours else getattr(of, "groupnorm", of.o_proj)
        module.register_forward_pre_hook(lambda m, args: contexts.append(args[0].detach()))
    options = {"output_attentions": True} | ({"output_attention_maps": True} if ours else {})
    with torch.no_grad():
        out = network(padded, attention_mask=mask, **options)
    layers = []
    for number, maps in enumerate(out.attentions):
        own, rows = network.model.layers[number].self_attn, []
        for text, ids in enumerate(texts):
            n = ids.shape[1]
            if ours:
                raw = out.attention_maps[number][text, :, :, :n, :n]
                both, signed = raw.unbind(1), maps[text, :, :n, :n]
                context = contexts[number][text, :n]
            elif network.config.model_type == "diffllama":
                both = maps[text, :, :n, :n].chunk(2)
                lam = (own.lambda_q1 @ own.lambda_k1).exp() - (own.lambda_q2 @ own.lambda_k2).exp()
                signed = both[0] - (lam + own.lambda_init).detach() * both[1]
                context = contexts[number].reshape(len(texts), longest, 2, -1)[text, :n]
            else:
                both = (maps[text, :, :n, :n],)
                signed = both[0]
                context = contexts[number][text, :n].unflatten(-1, (len(signed), -1))
            rows.append(([x.double() for x in both], signed.double(), context.transpose(0, 1)))
        layers.append(rows)
    return layers


def of_distance(distance):
    return max(number for number, begin in enumerate(DISTANCES) if distance >= begin)


def entropy(row):
    p = row[row > 0] / row.sum()
    return float(-(p * p.log()).sum()) / math.log(len(row))


def brute_head(rows, head):
    """One head, query by query and key by key."""
    found, ranges, queries = {}, {}, 0

    def add(name, value):
        found[name] = found.get(name, 0.0) + value

    for maps, signed, _ in rows:
        for i in range(1, signed.shape[1]):
            queries += 1
            kinds = {"signed": signed[head, i, : i + 1], "map_1": maps[0][head, i, : i + 1]}
            kinds["absolute"] = kinds["signed"].abs()
            if len(maps) == 2:
                kinds["map_2"] = maps[1][head, i, : i + 1]
                taken = kinds["map_1"] - kinds["signed"]  # λ A2
                kinds["cancelled"] = torch.minimum(kinds["map_1"], taken.clamp(min=0))
                lam = max(float(taken.sum()), 0.0)
                add("cancelled", float(kinds["cancelled"].sum()))
                even = torch.minimum(kinds["map_1"], torch.tensor(lam / (i + 1)))
                add("cancelled_by_uniform", float(even.sum()))
                add("entropy_2", entropy(kinds["map_2"]))
                add("negative_mass", float((-kinds["signed"]).clamp(min=0).sum()))
                add("absolute_mass", float(kinds["absolute"].sum()))
            add("entropy_1", entropy(kinds["map_1"]))
            add("entropy", entropy(kinds["absolute"]))
            for kind, x in kinds.items():
                prefix = "" if kind == "signed" else f"{kind}_"
                for j in range(i + 1):
                    name = "sink" if j == 0 else {0: "self", 1: "previous"}.get(i - j)
                    if name and kind != "cancelled":
                        add(prefix + name, float(x[j]))
                    where = "first" if j == 0 else of_distance(i - j)
                    ranges.setdefault(kind, {}).setdefault(where, 0.0)
                    ranges[kind][where] += float(x[j])
    mean = {name: value / queries for name, value in found.items()}
    of = ranges["absolute"]
    mean["sink_share"] = of["first"] / sum(of.values())
    return mean, {
        kind: {where: value / queries for where, value in of.items()} for kind, of in ranges.items()
    }


def pairs(maps, *, centred):
    """Visible entries of one head's map over all texts, without first queries."""
    rows = []
    for one in maps:
        for i in range(1, len(one)):
            row = one[i, : i + 1]
            rows.append(row - row.mean() if centred else row)
    return torch.cat(rows)


def cosine(x, y):
    return float(x @ y / (x.norm() * y.norm()))


def brute_cka(features):
    """From n by n matrices with a zero diagonal, as the papers write it."""

    def hsic(x, y):
        total = 0.0
        for a, b in zip(x, y, strict=True):
            n = len(a)
            if n < 4:
                continue
            k, m = (z @ z.T for z in (a, b))
            k, m = (z - z.diagonal().diag() for z in (k, m))
            one = torch.ones(n, 1, dtype=torch.float64)
            total += float(
                (k @ m).trace()
                + (one.T @ k @ one) * (one.T @ m @ one) / ((n - 1) * (n - 2))
                - 2 / (n - 2) * (one.T @ k @ m @ one)
            ) / (n * (n - 3))
        return total

    heads = range(len(features))
    values = [
        hsic(features[g], features[h])
        / math.sqrt(hsic(features[g], features[g]) * hsic(features[h], features[h]))
        for g, h in itertools.combinations(heads, 2)
    ]
    return sum(values) / len(values)


@pytest.mark.parametrize(
    "entries", [1, pytest.param(10**6, marks=pytest.mark.scheduled)], ids=["row by row", "whole"]
)
def test_everything_equals_brute_force(network, texts, entries):
    found = statistics(network, texts, entries)
    for layer, rows in zip(found, full_maps(network, texts), strict=True):
        num_heads = len(rows[0][1])
        assert layer["queries"] == sum(n - 1 for n in LENGTHS)
        ranges = []
        for head in range(num_heads):
            expected, by_distance = brute_head(rows, head)
            ranges.append(by_distance)
            two = len(rows[0][0]) == 2
            if two:
                for centred, name in ((False, "cosine"), (True, "correlation")):
                    expected[name] = cosine(
                        *(pairs([m[k][head] for m, _, _ in rows], centred=centred) for k in (0, 1))
                    )
            context = torch.cat([c[head] for _, _, c in rows])
            expected["context_rms"] = float(context.square().mean().sqrt())
            kept = {name: value for name, value in expected.items() if name in layer["heads"]}
            assert kept.keys() == layer["heads"].keys() - {"value_rms"}
            for name, value in kept.items():
                assert layer["heads"][name][head] == pytest.approx(value, abs=ROUNDING), name
        for kind, of_kind in layer["by_distance"].items():
            if kind == "cancelled_share":
                continue
            for number, value in enumerate(of_kind["ranges"]):
                mean = sum(of[kind].get(number, 0.0) for of in ranges) / num_heads
                assert value == pytest.approx(mean, abs=ROUNDING)
            mean = sum(of[kind]["first"] for of in ranges) / num_heads
            assert of_kind["first"] == pytest.approx(mean, abs=ROUNDING)
        if "cancelled_share" in layer["by_distance"]:
            for number, value in enumerate(layer["by_distance"]["cancelled_share"]["ranges"]):
                part, whole = (
                    sum(of[kind].get(number, 0.0) for of in ranges)
                    for kind in ("cancelled", "map_1")
                )
                assert (value is None) == (whole == 0)
                assert value is None or value == pytest.approx(part / whole, abs=ROUNDING)
        acting = "signed" if len(rows[0][0]) == 2 else "map_1"
        for name, centred in (("map_cosine", False), ("map_correlation", True)):
            values = [
                cosine(*(pairs([s[h] for _, s, _ in rows], centred=centred) for h in both))
                for both in itertools.combinations(range(num_heads), 2)
            ]
            mean = sum(values) / len(values)
            assert layer[name][acting] == pytest.approx(mean, abs=10 * ROUNDING)
        features = [[c[head].double() for _, _, c in rows] for head in range(num_heads)]
        assert layer["cka"] == pytest.approx(brute_cka(features), abs=10 * ROUNDING)


def test_uniform_maps_are_what_the_reference_says():
    """Queries of 0: every map is uniform, and nothing correlates."""
    lengths = [9, 30, 1]
    layer = LayerAttention(2, 2)
    generator = torch.Generator().manual_seed(0)
    for n in lengths:
        zero = torch.zeros(n, 2, 2, 4, dtype=torch.float64)
        v = torch.randn(n, 2, 6, generator=generator, dtype=torch.float64)
        lam = torch.full((n, 2), 0.4, dtype=torch.float64)
        inputs = AttentionInputs(q=zero, k=zero, v=v, lam=lam, scale=0.5)
        layer.add(inputs, logit_rows(inputs, 50))
    found, expected = layer.result(), uniform_masses(lengths)
    assert found["by_distance"]["map_1"]["first"] == pytest.approx(expected["first"])
    assert found["by_distance"]["map_1"]["ranges"] == pytest.approx(expected["by_distance"])
    assert found["heads"]["entropy"] == pytest.approx([1, 1])
    assert found["heads"]["correlation"] == [None, None]
    assert found["heads"]["cosine"] == pytest.approx([1, 1])
    assert found["heads"]["cancelled"] == pytest.approx([0.4, 0.4])
    assert found["heads"]["cancelled_by_uniform"] == pytest.approx([0.4, 0.4])
    assert found["heads"]["negative_mass"] == pytest.approx([0, 0], abs=1e-12)
    assert found["map_cosine"]["signed"] == pytest.approx(1)
    assert found["map_correlation"]["signed"] is None


def test_cka_of_independent_and_of_equal_heads():
    """The usual estimator would give independent features 16 / (16 + 32)."""
    generator = torch.Generator().manual_seed(0)
    cka, same = HeadCka(2), HeadCka(2)
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=generator))[0]
    for _ in range(40):
        x = torch.randn(2, 32, 16, generator=generator)
        cka.add(x)
        same.add(torch.stack([x[0], 3 * x[0] @ rotation]))
    assert abs(cka.mean()) < 0.02
    assert same.mean() == pytest.approx(1, abs=1e-5)
    assert HeadCka(1).mean() is None
    assert HeadCka(2).mean() is None


def test_a_text_of_one_token_says_nothing_of_maps(network):
    for layer in statistics(network, [torch.tensor([[3]])], 100):
        assert layer["heads"].keys() == {"context_rms", "value_rms"}
        assert layer["by_distance"] == {}
        assert layer["queries"] == 0
        assert layer["cka"] is None


def test_memory_is_bounded_by_a_block_of_rows():
    """All maps of one layer would be 2 x 2 x 200 x 200 numbers."""
    n, block = 200, 10_000
    q, k, v = torch.randn(n, 2, 2, 4), torch.randn(n, 1, 2, 4), torch.randn(n, 1, 8)
    inputs = AttentionInputs(q=q, k=k, v=v, lam=torch.full((n, 2), 0.4), scale=0.5)
    layer = LayerAttention(2, 2)
    with Sizes() as sizes:
        layer.add(inputs, logit_rows(inputs, layer.block(block)))
    assert max(sizes.made) <= block
    assert layer.result()["queries"] == n - 1
