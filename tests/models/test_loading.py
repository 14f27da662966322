"""What ``load_model`` refuses: weights that its model would have to make up or leave out."""

import pytest

from diffattn.errors import CheckpointError
from diffattn.models.loading import load_model
from model_folders import edit_weights

DOWN = "model.layers.1.mlp.down_proj.weight"


def without(weights):
    del weights[DOWN]


def narrowed(weights):
    weights[DOWN] = weights[DOWN][:, 1:].contiguous()


def with_one_more(weights):
    weights["model.layers.2.mlp.down_proj.weight"] = weights[DOWN].clone()


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (without, f"no {DOWN}"),
        (narrowed, f"another shape of {DOWN}"),
        (with_one_more, r"also model\.layers\.2\.mlp\.down_proj\.weight"),
    ],
)
def test_the_weights_must_be_those_of_the_config(change, got, make_config, build, tmp_path):
    build(make_config()).save_pretrained(tmp_path)
    edit_weights(tmp_path, change)
    with pytest.raises(CheckpointError, match=rf"got {got} \(1 such names\)\.$"):
        load_model(str(tmp_path))
