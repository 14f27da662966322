"""Maps of one head: rows are weights, and the difference is A1 − λA2."""

import pytest
import torch

from diffattn.errors import ConfigError, ShapeError
from diffattn.probes.attention_rows import example_maps
from diffattn.probes.lambdas import layer_lambdas


def test_rows_sum_to_one_and_to_one_minus_lambda(make_model, input_ids, attention_type):
    model = make_model(attention_type)
    ids = input_ids[:1]
    for layer, head in ((0, 0), (2, model.config.num_heads - 1)):
        maps = example_maps(model, ids, layer=layer, head=head)
        assert (maps.layer, maps.head) == (layer, head)
        assert maps.map_1.shape == (12, 12)
        for weights in (maps.map_1, maps.map_2):
            if weights is not None:
                assert weights.dtype == torch.float32
                torch.testing.assert_close(weights.sum(-1), torch.ones(12))
                assert (weights >= 0).all()
                assert torch.equal(weights, weights.tril())
        if attention_type == "softmax":
            assert maps.map_2 is None
            assert maps.difference is None
            continue
        assert not torch.allclose(maps.map_1, maps.map_2)
        lam = 1 - maps.difference.sum(-1, keepdim=True)  # [T, 1]
        torch.testing.assert_close(maps.difference, maps.map_1 - lam * maps.map_2)
        if attention_type == "diff_v2":
            assert lam.std() > 1e-4  # one λ per token
        else:
            expected = torch.full((12, 1), layer_lambdas(model, ids)[layer])
            torch.testing.assert_close(lam, expected)


def test_heads_and_layers_differ(make_model, input_ids):
    model = make_model("diff")
    first, second, third = (
        example_maps(model, input_ids[:1], layer=layer, head=head).map_1
        for layer, head in ((0, 0), (0, 1), (1, 0))
    )
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, third)


def test_what_does_not_exist_is_refused(make_model, input_ids):
    model = make_model("diff")
    for layer, head, message in (
        (3, 0, "layer must be from 0 to 2, got 3"),
        (-1, 0, "layer must be from 0 to 2, got -1"),
        (0, 2, "head must be from 0 to 1, got 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            example_maps(model, input_ids[:1], layer=layer, head=head)
    for ids in (input_ids, input_ids[0]):
        with pytest.raises(ShapeError, match=r"input_ids must be \[1, T\], got"):
            example_maps(model, ids, layer=0, head=0)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_mode(make_model, input_ids, training):
    model = make_model("diff").train(training)
    example_maps(model, input_ids[:1], layer=0, head=0)
    assert all(module.training == training for module in model.modules())
