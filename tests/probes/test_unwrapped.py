"""A model of ours is read as what it is inside an adapter or a compiler, or not at all."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from diffattn.errors import ConfigError
from diffattn.models.modeling_diff_transformer import DiffTransformerForSequenceClassification
from diffattn.probes.attention_rows import attention_rows
from diffattn.probes.layer_reader import read_layers, require_readable
from diffattn.probes.unwrapped import unwrapped


class Forwarding(nn.Module):
    """Answers with what it holds for what it lacks, and is no instance of its class."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(next(iter(self._modules.values())), name)

    def forward(self, *args, **options):
        return next(iter(self._modules.values()))(*args, **options)


class Wrapper(Forwarding):
    """Behaves as ``peft.PeftModel``."""

    def __init__(self, model, *, is_prompt_learning=False):
        super().__init__()
        self.base_model = model
        self.active_peft_config = SimpleNamespace(is_prompt_learning=is_prompt_learning)

    def get_base_model(self):
        return self.base_model


class Compiled(Forwarding):
    """Behaves as what ``torch.compile`` gives."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model


def compiled(model):
    return torch.compile(model, backend="eager")


def with_adapter(model):
    peft = pytest.importorskip("peft", reason="peft is optional")
    options = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    return peft.get_peft_model(model, options)


REAL = [
    pytest.mark.scheduled,  # importing peft and the compiler takes seconds
    # peft asks transformers 5.23 by an older name.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]
WRAPS = [
    pytest.param(Wrapper, id="wrapper"),
    pytest.param(Compiled, id="compiler"),
    pytest.param(lambda model: Compiled(Wrapper(model)), id="both"),
    pytest.param(compiled, id="torch.compile", marks=REAL),
    pytest.param(with_adapter, id="peft", marks=REAL),
    pytest.param(lambda model: compiled(with_adapter(model)), id="peft, compiled", marks=REAL),
]


@pytest.mark.parametrize("wrap", WRAPS)
def test_both_maps_and_lambda_are_read(make_model, input_ids, wrap):
    model = make_model("diff").eval()
    wrapped, ids = wrap(model).eval(), input_ids[:1]
    assert unwrapped(wrapped) is model
    assert unwrapped(model) is model
    for rows, plain in zip(attention_rows(wrapped, ids), attention_rows(model, ids), strict=True):
        assert torch.equal(rows.maps, plain.maps)
        assert torch.equal(rows.signed, plain.signed)
        assert rows.maps.shape[1] == 2
    require_readable(wrapped, 12)
    seen = {}
    read_layers(wrapped, ids, seen.__setitem__)
    assert [seen[layer].lam is not None for layer in sorted(seen)] == [True] * 3


def test_tokens_before_every_text_are_refused(make_model, input_ids):
    wrapped = Wrapper(make_model("diff").eval(), is_prompt_learning=True)
    with pytest.raises(ConfigError, match="must act within the layers, got tokens before every"):
        attention_rows(wrapped, input_ids[:1])


def test_a_model_class_without_a_language_head_is_refused(make_model, input_ids):
    model = DiffTransformerForSequenceClassification(make_model("diff").config).eval()
    with pytest.raises(ConfigError, match="must be a DiffTransformerForCausalLM, got DiffTransf"):
        attention_rows(model, input_ids[:1])
