"""Our operator and Hugging Face's kernels compute the same model."""

import pytest
import torch
from transformers import StaticCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from diffattn.errors import BackendError, ConfigError

BACKENDS = [
    ("diffattn", "auto"),
    ("diffattn", "chunked"),
    ("diffattn", "composed"),
    ("sdpa", "auto"),
    ("eager", "auto"),
]


compiles = pytest.mark.filterwarnings(
    "ignore:_compile flag on:DeprecationWarning",
    "ignore:`torch.jit.script_method`:DeprecationWarning",
    "ignore:.*should not be instantiated:DeprecationWarning",
)
"""PyTorch's warnings about itself while it compiles."""


@pytest.fixture(params=BACKENDS, ids="-".join)
def other(request, model):
    """The model under one implementation and backend."""
    name, backend = request.param
    ops = {facts.op for facts in model.config.attention_by_layer}
    if backend == "composed" and "softmax_attention" in ops:
        backend = "sdpa" if len(ops) == 1 else "chunked"
    model.config.attention_backend = backend
    model.set_attn_implementation(name)
    return model


@pytest.fixture(params=[False, True], ids=["whole", "padded"])
def compute(request, ids, padding_mask):
    """Logits of a batch, of its real tokens if one row is padded on the left."""
    if not request.param:
        return torch.no_grad()(lambda model: [model(ids).logits])
    inputs = {
        "input_ids": ids * padding_mask,
        "attention_mask": padding_mask,
        "position_ids": (padding_mask.cumsum(-1) - 1).clamp(min=0),
    }
    return torch.no_grad()(lambda model: [model(**inputs).logits[padding_mask.bool()]])


@pytest.mark.sampled(one_of=3)
def test_logits_agree(other, compute, assert_only_rounding):
    assert_only_rounding(compute(other), other, compute)


@pytest.mark.sampled(one_of=3)
def test_gradients_agree(other, ids, assert_only_rounding):
    """Of every matrix; of all vectors of one kind together, for λ's can be near zero in a layer."""

    def gradients(model):
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        matrices, vectors = [], {}
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                matrices.append(parameter.grad)
            else:
                kind = "lambda" if ".lambda_" in name else name.split(".")[-2]
                vectors.setdefault(kind, []).append(parameter.grad)
        return [*matrices, *(torch.cat(group) for group in vectors.values())]

    assert_only_rounding(gradients(other), other, gradients)


def test_the_backend_in_the_configuration_is_used(make_config, build, ids):
    """A named backend never falls back: V2's values are not twice as wide as its keys."""
    model = build(make_config("diff_v2", attention_backend="flash_diff_attn_2"))
    with pytest.raises(BackendError, match="'flash_diff_attn_2' needs Dv = 2 head_dim"):
        model(ids)


def test_unknown_implementation(make_config, build):
    message = r"attn_implementation must be in .*diffattn.*got 'spda'. Did you mean 'sdpa'\?"
    model = build(make_config())
    with pytest.raises(ConfigError, match=message):
        model.set_attn_implementation("spda")
    assert model.config._attn_implementation == "diffattn"
    with pytest.raises(ConfigError, match=message):
        type(model)._from_config(make_config(), attn_implementation="spda")


def test_float32_under_a_flash_kernel_is_refused(make_config, build, ids, monkeypatch):
    """transformers looks for a linear layer, whose dtype it takes instead, and finds none."""
    sdpa, seen = ALL_ATTENTION_FUNCTIONS["sdpa"], []

    def attention(module, q, k, v, mask, **kwargs):
        seen.append(q.dtype)
        return sdpa(module, *(x.bfloat16() for x in (q, k, v)), mask, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_probe", attention)
    model = build(make_config("diff", num_hidden_layers=1))
    model.config._attn_implementation = "flash_probe"  # the setter would look for its kernel
    with pytest.raises(ConfigError, match="'flash_probe' needs float16 or bfloat16, got float32"):
        model(ids)
    assert not seen
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(ids)
    with torch.no_grad():
        model.bfloat16()(ids)
    assert seen == [torch.bfloat16] * 2


@pytest.mark.scheduled
@compiles
def test_flex_attention_agrees(model, compute, assert_only_rounding):
    """Forward only: FlexAttention has no backward on CPU. Compiles once per shape."""
    torch._dynamo.reset()  # each model is another shape, and recompiling has a limit
    model.set_attn_implementation("flex_attention")
    assert_only_rounding(compute(model), model, compute)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "name", ["diffattn", "sdpa", "eager", "flex_attention", "flash_attention_2"]
)
@compiles
def test_logits_agree_on_cuda(model, ids, name, assert_only_rounding, logits_of):
    if name == "flash_attention_2":
        pytest.importorskip("flash_attn", reason="needs flash-attn")
        model.to(torch.bfloat16)
    model.to("cuda")
    compute = logits_of(input_ids=ids.cuda())
    model.set_attn_implementation(name)
    assert_only_rounding(compute(model), model, compute)


@pytest.mark.scheduled
@compiles
def test_compiled_without_graph_breaks(
    attention_type, make_config, build, ids, assert_only_rounding, logits_of
):
    """Forward, one training step, and decode steps on a static cache without recompiling."""
    model = build(make_config(attention_type))
    torch._dynamo.reset()
    compiled = torch.compile(model.forward, fullgraph=True)
    with torch.no_grad():
        logits = compiled(ids, use_cache=False).logits
        assert_only_rounding([logits], model, logits_of(input_ids=ids))

        cache = StaticCache(config=model.config, max_cache_len=16)
        steps = [model(ids[:, :8], past_key_values=cache).logits]
        steps.append(compiled(ids[:, 8:9], past_key_values=cache).logits)
        with torch._dynamo.config.patch(error_on_recompile=True):
            steps += [compiled(ids[:, i : i + 1], past_key_values=cache).logits for i in (9, 10)]
        assert_only_rounding([torch.cat(steps, 1)], model, logits_of(input_ids=ids))

    def gradients(run):
        def compute(m):
            m.zero_grad()
            (run or m)(ids, labels=ids, use_cache=False).loss.backward()
            return [m.model.embed_tokens.weight.grad]

        return compute

    assert_only_rounding(gradients(compiled)(model), model, gradients(None))
