"""Maps made from what the layers hand over equal those of the models, block by block."""

import gc
import weakref

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.attention_rows import attention_rows
from diffattn.probes.layer_reader import logit_rows, read_layers, require_readable
from diffattn.probes.quantized_logits import quantized_logits, require_quantizable
from tensor_sizes import Sizes

# Models are float64, but Hugging Face's norms and eager softmax work in float32.
ROUNDING = 64 * torch.finfo(torch.float32).eps


@pytest.fixture(params=[*ATTENTION_TYPES, "llama", "diffllama", "gpt2"])
def network(request, make_model):
    return make_model(request.param).eval().double()


def whole(inputs, entries):
    """Both maps and the context from blocks of rows."""
    blocks = []
    for rows in logit_rows(inputs, entries):
        maps = rows.logits.masked_fill(~rows.visible, -torch.inf).softmax(-1)
        blocks.append(torch.nn.functional.pad(maps, (0, len(inputs.q) - maps.shape[-1])))
    maps = torch.cat(blocks, dim=2)  # [H, maps, T, S]
    signed = maps[:, 0]
    if inputs.lam is not None:
        signed = signed - inputs.lam.T[..., None] * maps[:, 1]
    return maps, signed


@pytest.mark.sampled(one_of=3)
@pytest.mark.parametrize("entries", [1, 200, 10**6])
def test_maps_of_row_blocks_equal_those_of_the_model(network, input_ids, entries):
    ids = input_ids[:1]
    require_readable(network, 12)
    actual = {}
    read_layers(network, ids, actual.__setitem__)
    expected = attention_rows(network, ids)
    assert sorted(actual) == list(range(len(expected)))
    for layer, rows in enumerate(expected):
        maps, signed = whole(actual[layer], entries)
        torch.testing.assert_close(maps, rows.maps, rtol=0, atol=ROUNDING)
        torch.testing.assert_close(signed, rows.signed, rtol=0, atol=ROUNDING)


def test_hidden_states_are_those_after_each_block(network, input_ids):
    actual = {}
    read_layers(network, input_ids[:1], lambda layer, x: None, actual.__setitem__)
    expected = network(input_ids[:1], output_hidden_states=True).hidden_states
    for layer in range(2):  # transformers gives the last one after the final norm
        torch.testing.assert_close(
            actual[layer], expected[layer + 1][0].detach(), rtol=ROUNDING, atol=ROUNDING
        )
    assert actual[2].shape == (12, 32)


def test_no_tensor_is_as_large_as_all_maps(make_model):
    """512 tokens, 2 heads, 2 maps: 1M logits a layer, read 16K at a time."""
    model = make_model("diff").eval()
    ids = torch.randint(50, (1, 512), generator=torch.Generator().manual_seed(0))
    sizes = Sizes()

    def read(layer, inputs):
        with sizes:
            for rows in logit_rows(inputs, 2**14):
                assert rows.logits.numel() <= 2**14

    read_layers(model, ids, read)
    assert max(sizes.made) == 2**14  # also the size of the queries


def test_models_without_whole_maps_are_refused_by_name(make_model):
    window = "'mistral' must attend to all tokens before, got a sliding window of 8"
    without_attention = make_model("softmax").config.twin("none").config
    for model, tokens, message in (
        (make_model("mistral", sliding_window=8), 9, window),
        (make_model("gemma2"), 8, "'gemma2' must be plain causal softmax, got softcap"),
        (make_model("bloom"), 8, "'bloom'"),
        (DiffTransformerForCausalLM(without_attention), 8, "'none' must have .* no attention"),
        (make_model("shared_diff_map_norm"), 8, "_norm' must have .*, norm on the map"),
    ):
        with pytest.raises(ConfigError, match=message):
            require_readable(model.eval(), tokens)
    require_readable(make_model("mistral", sliding_window=8).eval(), 8)


def test_nothing_holds_a_model_that_was_read(make_model, input_ids):
    def read():
        network = make_model("llama").eval()
        with pytest.raises(ZeroDivisionError):  # also after what went wrong
            read_layers(network, input_ids[:1], lambda layer, inputs: network and 1 / 0)
        read_layers(network, input_ids[:1], lambda layer, inputs: network is None)
        require_quantizable(network)
        with quantized_logits(network, 8):
            network(input_ids)
        return weakref.ref(network)

    seen = read()
    gc.collect()
    assert seen() is None
