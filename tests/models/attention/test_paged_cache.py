"""Continuous batching by our operator: what the pages hold, how they are read, and what comes."""

import pytest
import torch
from packaging import version
from transformers import CompileConfig, GenerationConfig, __version__
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from diffattn.models.attention import paged_cache
from diffattn.models.attention.paged_cache import OneCopyManager, reads_pages
from diffattn.ops.backends import custom_op
from diffattn.ops.inputs import backends

if version.parse(__version__) < version.parse("5.23"):
    pytest.skip("caches hand out their pages from transformers 5.23 on", allow_module_level=True)

NEW = 6
DIFFERENTIAL = ["diff", "diff_v2", "shared_diff", "grouped_diff"]


@pytest.fixture
def tokens(paged):
    """``tokens(model, prompts, new, **changes)``: greedy tokens of ``generate_batch``."""

    def generate(model, prompts, new=NEW, **changes):
        results = model.generate_batch(prompts, **paged(new, **changes))
        assert not any(result.error for result in results.values())
        return [result.generated_tokens for result in results.values()]

    return generate


def alone(model, prompt, new=NEW):
    ids = torch.tensor([prompt])
    out = model.generate(ids, max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=-1)
    return out[0, len(prompt) :].tolist()


def prompts(*lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randperm(60, generator=generator)[:n] + 1).tolist() for n in lengths]


@pytest.fixture
def caches(monkeypatch):
    """Every paged cache that is made."""
    made, init = [], PagedAttentionCache.__init__

    def spy(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(PagedAttentionCache, "__init__", spy)
    return made


@pytest.mark.sampled(one_of=2)
def test_pages_hold_keys_and_values_once(tokens, attention_type, make_config, build, ids, caches):
    """Bytes per token and layer: 2 Hkv Dv numbers by our operator, what sdpa needs is shown too."""
    config = make_config(attention_type)
    model = build(config)
    per_token = {}
    for name in ("diffattn", "sdpa"):
        model.set_attn_implementation(name)
        tokens(model, [ids[0].tolist()], new=2)
        (allocator,) = caches[-1].cache_allocators.values()
        per_token[name] = allocator.bytes_per_page // allocator.tokens_per_page
        # The cache holds so many tokens, and two sectors that nobody owns.
        assert (
            caches[-1].cache_tensor.numel() == 34 * 4 * config.num_hidden_layers * per_token[name]
        )
    heads, width = config.cached_kv_shape  # of a dynamic cache
    once = 4 * heads * 2 * width
    twice = config.attention.key_maps
    assert per_token == {"diffattn": once, "sdpa": twice * once}
    assert config.num_key_value_heads == config.to_dict()["num_key_value_heads"]


@pytest.mark.parametrize("attention_type", ["diff,softmax", "softmax"])
def test_a_server_that_starts_the_manager_itself_gets_the_same_tokens(
    attention_type, make_config, build, ids, paged
):
    """As ``transformers serve`` does. Pages beside softmax layers are read by sdpa."""
    model, prompt = build(make_config(attention_type)), ids[0].tolist()
    manager = model.init_continuous_batching(**paged(NEW))
    manager.start()
    request = manager.add_request(prompt, max_new_tokens=NEW)
    result = manager.get_result(request, timeout=60)
    manager.stop(block=True, timeout=60)
    assert result.generated_tokens == alone(model, prompt)
    assert model.config._attn_implementation == "diffattn"


@pytest.mark.parametrize("attention_type", DIFFERENTIAL)
def test_the_kernel_reads_the_pages(
    tokens, attention_type, make_config, build, monkeypatch, caches
):
    """Through Triton's interpreter: the pages themselves are read, and the tokens are the same."""
    pytest.importorskip("triton", reason="the kernels need triton")
    wide = attention_type != "diff_v2"
    config = make_config(
        attention_type, head_dim=32, num_heads=2, num_kv_heads=1, num_hidden_layers=1
    )
    model = build(config)
    first, second = prompts(9, 5)
    expected = [alone(model, first, 3), alone(model, second, 3)]
    monkeypatch.setitem(backends._AUTO, "paged_decode", lambda inputs: "triton")
    calls, forward = [], custom_op.triton_paged_decode

    def spy(*args):
        calls.append(args)
        return forward(*args)

    monkeypatch.setattr(custom_op, "triton_paged_decode", spy)
    assert tokens(model, [first, second], 3) == expected
    assert len(calls) == 2  # the second and the third token of both
    storage = caches[0].cache_tensor.untyped_storage().data_ptr()
    for q, k_pages, v_pages, _, table, *_ in calls:
        assert q.shape[:2] == (2, 1)
        assert k_pages.shape[1:] == ((4, 1, 2, 32) if wide else (4, 1, 32))
        assert v_pages.shape[1:] == (4, 1, 64 if wide else 32)
        assert {x.untyped_storage().data_ptr() for x in (k_pages, v_pages)} == {storage}
        assert table.shape == (2, 3)
    assert [sorted(args[5].tolist()) for args in calls] == [[6, 10], [7, 11]]


@pytest.mark.parametrize("attention_type", DIFFERENTIAL)
def test_a_prompt_in_parts_beside_others_that_decode(tokens, attention_type, make_config, build):
    """More than 16 queries against keys of earlier passes, in one batch with single queries."""
    model = build(make_config(attention_type))
    several = prompts(45, 7, 3)
    seen, make = [], paged_cache.paged_batch

    def spy(num_tokens, kwargs):
        batch = make(num_tokens, kwargs)
        seen.append((batch.few is not None, len(batch.many)))
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diffattn.models.modeling_diff_transformer.paged_batch", spy)
        got = tokens(model, several, max_batch_tokens=24)
    assert got == [alone(model, prompt) for prompt in several]
    assert {(False, 0), (True, 1), (True, 0)} <= set(seen)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_a_named_backend_gets_gathered_pages(tokens, backend, make_config, build):
    model = build(make_config("diff", attention_backend=backend))
    several = prompts(6, 11)
    expected = [alone(model, prompt) for prompt in several]
    assert tokens(model, several) == expected


@pytest.mark.scheduled
def test_padded_passes(make_config, build, tokens):
    """Under a compiler Hugging Face pads tokens and sequences with some of no length."""
    model = build(make_config("diff"))
    several = prompts(6, 11, 4)
    expected = [alone(model, prompt) for prompt in several]
    options = {"q_padding_interval_size": 16, "kv_padding_interval_size": 16}
    options["varlen_compile_config"] = CompileConfig(backend="eager", mode=None)
    got = tokens(model, several, **options)
    assert got == expected


def test_shared_prompts_share_pages(tokens, make_config, build):
    """Blocks of equal tokens are one block: the tables of two sequences name the same pages."""
    model = build(make_config("diff"))
    (prompt,) = prompts(14)
    several = [prompt, [*prompt[:12], 7, 9]]
    assert tokens(model, several, max_requests_per_batch=1) == [alone(model, x) for x in several]


def test_a_map_that_no_kernel_gives_access_to_is_not_read_off_pages(make_config):
    assert not reads_pages(make_config("shared_diff_map_norm"))


@pytest.mark.parametrize("given", [GenerationConfig(max_new_tokens=2), None], ids=["given", "own"])
def test_a_generation_config_without_an_end_is_left_as_it_was(make_config, build, given):
    """The manager needs a number that ends nothing; ``generate`` would look for it."""
    model = build(make_config("diff"))
    manager = OneCopyManager(model, given)
    assert manager.generation_config.eos_token_id == -1
    assert (given or model.generation_config).eos_token_id is None
