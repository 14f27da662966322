"""A λ outside [0, 1] is brought back by the smallest change, or drawn anew."""

import pytest
import torch

from continued_runs import assert_same_files, stop
from diffattn.files.io import read_jsonl
from diffattn.lab.training.monitoring.guard import TOLERANCE, clip_lambda, draw_lambda_vectors
from diffattn.lab.training.run import train
from diffattn.layers.diff_attention import DiffAttention
from diffattn.layers.parts import LAMBDA_NAMES, LAMBDA_STD

SAME = ("metrics.jsonl", "model/model.safetensors")


def layer_with(lam, seed=0):
    """A layer whose λ is this one, by the length of one of its vectors."""
    torch.manual_seed(seed)
    layer = DiffAttention(32, 2, 16, lambda_init=0.4)
    with torch.no_grad():
        for name in LAMBDA_NAMES:
            getattr(layer, name).normal_(0.0, 0.5)
        rest = float(layer.lam() - (layer.lambda_q1 @ layer.lambda_k1).exp())
        second = lam - rest <= 0  # needs a larger subtracted term
        q, k = ("lambda_q2", "lambda_k2") if second else ("lambda_q1", "lambda_k1")
        q, k = getattr(layer, q), getattr(layer, k)
        other = float(layer.lam() + (q @ k).exp() - lam) if second else lam - rest
        q += (torch.tensor(other).log() - q @ k) / (k @ k) * k
    assert layer.lam().item() == pytest.approx(lam, abs=1e-4)
    return layer


def clipped(layer, edge):
    """Clip λ to an edge; returns the vectors as they were."""
    before = {name: getattr(layer, name).detach().clone() for name in LAMBDA_NAMES}
    clip_lambda(layer)
    assert layer.lam().item() == pytest.approx(edge, abs=TOLERANCE)
    return before


@pytest.mark.parametrize(("lam", "edge"), [(1.7, 1.0), (1.01, 1.0), (-0.4, 0.0), (-3.0, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_clipping_moves_one_vector_along_its_partner(lam, edge, seed):
    layer = layer_with(lam, seed)
    before = clipped(layer, edge)
    moved = "lambda_q1" if edge else "lambda_q2"
    change = {name: getattr(layer, name).detach() - before[name] for name in LAMBDA_NAMES}
    assert [name for name in LAMBDA_NAMES if change[name].any()] == [moved]
    partner = before[moved.replace("q", "k")]
    cosine = torch.cosine_similarity(change[moved], partner, dim=0)
    assert abs(float(cosine)) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("lambda_init", "edge"), [(2.5, 1.0), (1.5, 1.0), (-3.0, 0.0)])
def test_clipping_moves_the_other_vector_where_one_cannot_reach_the_edge(lambda_init, edge):
    layer = DiffAttention(32, 2, 16, lambda_init=lambda_init)
    with torch.no_grad():
        for name in LAMBDA_NAMES:
            getattr(layer, name).fill_(0.3 if name in ("lambda_q1", "lambda_k1") else 0.1)
        (layer.lambda_q2 if edge else layer.lambda_q1).mul_(-5)
    before = clipped(layer, edge)
    moved = [name for name in LAMBDA_NAMES if not getattr(layer, name).equal(before[name])]
    assert moved == ["lambda_q2" if edge else "lambda_q1"]


def test_vectors_are_drawn_as_for_a_new_layer():
    wide = DiffAttention(32, 2, 4096)
    draw_lambda_vectors(wide, torch.Generator().manual_seed(3))
    again = DiffAttention(32, 2, 4096)
    draw_lambda_vectors(again, torch.Generator().manual_seed(3))
    for name in LAMBDA_NAMES:
        assert getattr(wide, name).detach().std() == pytest.approx(LAMBDA_STD, rel=0.05)
        assert torch.equal(getattr(wide, name), getattr(again, name))


@pytest.mark.scheduled
@pytest.mark.parametrize("policy", ["clip", "reinitialise"])
def test_every_action_is_recorded_and_repeated_after_a_restart(
    policy, make_run, bad_batches, data, tmp_path
):
    def enlarge(model, loss):
        layer = model.model.layers[1].self_attn
        layer.lambda_q1.data = 2 * layer.lambda_k1.data / layer.lambda_k1.data.square().sum()
        return loss

    config = make_run("diff", guard={"lam": policy}, num_steps=8)
    bad_batches(config, {2: enlarge, 6: enlarge})
    stop(config, data, tmp_path / "again", 7)
    train(config, data, tmp_path / "again")
    train(config, data, tmp_path / "whole")
    assert_same_files(tmp_path / "again", tmp_path / "whole", ("guard.jsonl", *SAME))
    rows = read_jsonl(tmp_path / "whole" / "guard.jsonl")
    done = [(row["step"], row["action"], row["layer"]) for row in rows]
    assert done == [(2, policy, 1), (6, policy, 1)]
    assert all(row["before"] > 1 for row in rows)
    if policy == "clip":
        assert all(row["after"] == pytest.approx(1, abs=TOLERANCE) for row in rows)
    else:
        assert all(0 < row["after"] < 1 for row in rows)


@pytest.mark.scheduled
def test_types_whose_lambda_is_bounded_need_no_policy(finished, make_run, data, tmp_path):
    train(make_run("diff_v2", guard={"lam": "clip"}), data, tmp_path / "run")
    assert_same_files(tmp_path / "run", finished / "diff_v2", SAME)
    assert not (tmp_path / "run" / "guard.jsonl").exists()
