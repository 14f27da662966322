"""The papers' sizes: counts on the meta device beside the papers' names."""

import pytest

from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.presets import preset, preset_table
from diffattn.models.twins import parameter_count

PAPERS = ("830m", "1.4b", "2.8b", "3b", "gpt2-small", "6.8b", "13.1b")
# Billions, tied embedding counted once. Left: with the FFN at 8/3 of hidden unrounded, norms and
# λ not counted, which gives the sizes in the papers' names. Right: the models we build.
BILLIONS = {
    "830m": ("0.834", "0.834"),
    "1.4b": ("1.413", "1.410"),
    "2.8b": ("2.773", "2.779"),
    "3b": ("3.479", "3.479"),
    "6.8b": ("6.853", "6.862"),
    "13.1b": ("13.096", "13.084"),
}


@pytest.mark.parametrize("name", BILLIONS)
def test_totals_are_those_in_the_papers_names(name):
    config = preset(name)
    hidden, layers = config.hidden_size, config.num_hidden_layers
    norms_and_lambda = hidden + layers * (2 * hidden + 2 * config.head_dim + 4 * config.head_dim)
    rounding = 3 * hidden * layers * (config.intermediate_size - hidden * 8 / 3)
    total = parameter_count(config)
    unrounded, built = BILLIONS[name]
    assert f"{(total - norms_and_lambda - rounding) / 1e9:.3f}" == unrounded
    assert f"{total / 1e9:.3f}" == built


def test_3b_is_larger_than_the_paper_says():
    config = preset("3b")
    counts = [parameter_count(config, embeddings=False), parameter_count(config)]
    config.tie_word_embeddings = False
    counts.append(parameter_count(config))
    assert [f"{count / 1e9:.3f}" for count in counts] == ["3.171", "3.479", "3.787"]
    assert all(f"{count}B" in preset.__doc__ for count in ("3.171", "3.479", "3.787"))


@pytest.mark.sampled(one_of=3)
@pytest.mark.parametrize("kind", ATTENTION_TYPES)
@pytest.mark.parametrize("name", PAPERS)
def test_counts_are_exact_on_the_meta_device(name, kind, built_parameters):
    config = preset(name, kind)
    row = next(row for row in preset_table() if row["preset"] == name)
    total = row["parameters"] + row.get(f"{kind} twin", 0)
    assert built_parameters(config) == parameter_count(config) == total
