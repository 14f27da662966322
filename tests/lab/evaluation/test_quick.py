"""Reduced sizes that fit the models of a run."""

import json

import pytest

from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.evaluation.protocol import parts, protocol_class
from diffattn.lab.inference.named_models import shortest_context


def write(folder, **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_the_shortest_context_counts(tmp_path):
    models = [
        write(tmp_path / "a", max_position_embeddings=512),
        write(tmp_path / "b", max_position_embeddings=128),
        write(tmp_path / "c", vocab_size=3),
        str(tmp_path / "missing"),
        "owner/name",
    ]
    assert shortest_context(models) == 128
    assert shortest_context(models[2:]) is None
    (tmp_path / "a" / "config.json").write_text("{")
    assert shortest_context(models[:1]) is None


@pytest.mark.parametrize("longest", [32, 128, 256, None])
def test_sizes_that_can_keep_to_a_context_do(longest):
    limit = longest or 10**9
    made = {part.variant: part.protocol for part in parts(["all"], quick=True, longest=longest)}
    assert set(made) == set(PROTOCOLS)
    assert made["nll_by_position"].length <= limit
    assert made["ar_hits"].length <= limit
    assert made["block_perplexity"].block <= limit
    assert made["word_perplexity"].window <= limit
    assert max(made["sliding_perplexity"].windows) <= limit
    for name in ("needle", "ruler", "babilong"):
        assert max(made[name].lengths) <= limit
    assert (made["needle"].tasks == ((1, 1),)) == (longest is not None)
    if longest is None:
        for name, protocol in made.items():
            quick = protocol_class(name).quick
            assert {key: getattr(protocol, key) for key in quick} == dict(quick)
