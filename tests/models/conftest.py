"""Tiny models of every attention type, and what rounding may do to them."""

import copy
from contextlib import contextmanager
from inspect import signature

import pytest
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from diffattn.lab.testing.assertions import compare, measured_errors
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

# Four heads everywhere, over two key/value heads under GQA: fewer would hide a wrong head order.
# hidden_size differs from every heads * width, so that no axis can stand in for another.
TINY = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "attention_backend": "auto",
}
# As many key/value heads as heads is GQA with groups of one: a push runs it for one type.
CASES = [
    pytest.param(
        (kind, kv_heads),
        id=f"{kind}-{'mha' if kv_heads == 4 else 'gqa'}",
        marks=[pytest.mark.scheduled] if kv_heads == 4 and kind != "diff" else [],
    )
    for kind in ATTENTION_TYPES
    for kv_heads in (4, 2)
]
MIXED = pytest.param(("softmax,diff", 2), id="mixed-gqa")
"""Layers of two types, whose heads differ in number and width."""


@pytest.fixture(params=ATTENTION_TYPES)
def attention_type(request):
    return request.param


@pytest.fixture(params=[*CASES, MIXED])
def config(request):
    """Every attention type, MHA and GQA."""
    kind, kv_heads = request.param
    return DiffTransformerConfig(attention_type=kind, num_kv_heads=kv_heads, **TINY)


@pytest.fixture(scope="session")
def make_config():
    """``make_config(attention_type, **changes)``: tiny, two key/value heads."""

    def make(attention_type="diff", **changes):
        fields = {"attention_type": attention_type, "num_kv_heads": 2} | TINY | changes
        return DiffTransformerConfig(**fields)

    return make


@pytest.fixture(scope="session")
def build():
    """``build(config, seed=0)``: a model in evaluation mode with weights far from the start."""

    def make(config, seed=0):
        torch.manual_seed(seed)
        model = DiffTransformerForCausalLM(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if (".lambda_" in name and parameter.ndim == 1) or name.endswith(".bias"):
                    parameter.normal_(0.0, 0.5)  # λ differs clearly from λ_init
                elif parameter.ndim == 1:
                    parameter.normal_(1.0, 0.2)  # norms
                else:  # attention logits of a few units: maps far from uniform
                    parameter.normal_(0.0, 1.4 * parameter.shape[-1] ** -0.5)
        return model.eval()

    return make


@pytest.fixture
def model(config, build):
    return build(config)


@pytest.fixture(scope="session")
def ids():
    """int64 ``[2, 11]``, no token twice in a row and none 0 (which pads)."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randperm(60, generator=generator)[:11] + 1 for _ in range(2)]
    return torch.stack(rows)


@pytest.fixture(scope="session")
def padding_mask(ids):
    """int64 ``[2, 11]``: the first four tokens of the first row are padding."""
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return mask


@pytest.fixture(scope="session")
def built_parameters():
    """``built_parameters(config, embeddings=True)``: of the model, built without memory."""

    def count(config, *, embeddings=True):
        with torch.device("meta"):
            model = DiffTransformerForCausalLM(config)
        total = sum(parameter.numel() for parameter in model.parameters())
        return total if embeddings else total - model.model.embed_tokens.weight.numel()

    return count


@pytest.fixture(scope="session")
def implementation():
    """``with implementation(model, "sdpa")``: another attention implementation for a while."""

    @contextmanager
    def use(model, name):
        before = model.config._attn_implementation
        model.set_attn_implementation(name)
        try:
            yield
        finally:
            model.set_attn_implementation(before)

    return use


@pytest.fixture(scope="session")
def paged():
    """``paged(max_new_tokens, **changes)``: options of ``generate_batch``; pages of four tokens."""

    def options(max_new_tokens, **changes):
        known = signature(ContinuousBatchingConfig).parameters
        page = "page_size" if "page_size" in known else "block_size"  # renamed after 5.17
        return {
            "generation_config": GenerationConfig(
                max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            "continuous_batching_config": ContinuousBatchingConfig(
                **{"num_blocks": 32, "max_batch_tokens": 32, page: 4} | changes
            ),
        }

    return options


@pytest.fixture(scope="session")
def assert_only_rounding():
    r"""``assert_only_rounding(actual, model, compute)``: ``actual`` is ``compute(model)``, rounded.

    ``compute`` returns tensors, for example logits or gradients. Their exact values come from
    the reference operator in float64, their budgets from nudged runs of the reference operator in
    the model's own dtype: see ``diffattn.lab.testing.assertions``. ``ulps`` says by how many units
    the inputs of ``actual`` are off already.
    """

    def check(actual, model, compute, *, ulps=1.0):
        def run(model):
            return {f"tensor {i}": x for i, x in enumerate(compute(model))}

        exact = run(_with_reference(model).double())
        off = measured_errors(run, _with_reference(model), exact, ulps=ulps)
        for (name, want), x in zip(exact.items(), actual, strict=True):
            problem = compare(x, want, off[name]).problem
            assert problem is None, f"{name} is further off than rounding explains: {problem}"

    return check


@pytest.fixture(scope="session")
def logits_of():
    """``logits_of(**inputs)``: a ``compute`` for :func:`assert_only_rounding`."""

    def bind(**inputs):
        @torch.no_grad()
        def compute(model):
            return [model(**inputs).logits]

        return compute

    return bind


def _with_reference(model):
    model = copy.deepcopy(model)
    model.set_attn_implementation("diffattn")
    model.config.attention_backend = "reference"
    return model
