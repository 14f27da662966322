"""The model's code in one file, where ``diffattn`` is missing: the same results."""

import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.models.remote_code.saving import MODEL_FILE
from import_graph import imports_of

GREEDY = {"max_new_tokens": 8, "do_sample": False}
TYPES = [
    pytest.param(name, {}, marks=[] if name == "diff" else [pytest.mark.scheduled], id=name)
    for name in (*ATTENTION_TYPES, "softmax,diff", "grouped_diff,gated_element")
]
OPTIONAL = {"qkv_bias": True, "qk_norm": True}


def results(model, ids, mask, implementations):
    """Greedy tokens of a padded batch with both kinds of cache, and logits in float64."""
    tokens = [
        model.generate(ids, attention_mask=mask, cache_implementation=kind, **GREEDY).tolist()
        for kind in (None, "static")
    ]
    model.double()
    documents = torch.arange(ids.shape[1])[None] % 6
    logits = []
    for implementation in implementations:
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            logits += [
                model(ids).logits,
                model(ids, attention_mask=mask).logits[:, 4:],
                model(ids[:1], position_ids=documents, use_cache=False).logits,
                model(ids.repeat(1, 12)).logits,  # too long for whole maps on a CPU
            ]
    return tokens, [x.numpy() for x in logits]


@pytest.mark.parametrize(
    ("name", "options"),
    [*TYPES, pytest.param("diff_v2", OPTIONAL, marks=pytest.mark.scheduled, id="options")],
)
def test_results_equal_those_of_the_package(
    name, options, make_config, build, ids, tmp_path, without_diffattn
):
    model = build(make_config(name, pad_token_id=0, max_position_embeddings=256, **options))
    model.save_pretrained(tmp_path / "folder")
    mask = torch.ones_like(ids)
    mask[0, :4] = 0

    def elsewhere():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", trust_remote_code=True)
        assert type(loaded).__module__.startswith("transformers_modules.")
        return results(loaded.eval(), ids, mask, ("sdpa", "eager"))

    tokens, logits = without_diffattn(elsewhere)
    expected_tokens, expected = results(model, ids, mask, ("diffattn",))
    assert tokens == expected_tokens
    for got, wanted in zip(logits, expected * 2, strict=True):
        torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=1e-10, atol=1e-10)


@pytest.mark.scheduled
def test_a_model_learns_as_in_the_package(make_config, build, ids, tmp_path, without_diffattn):
    model = build(make_config("shared_diff"))
    model.save_pretrained(tmp_path / "folder")

    def learn(model):
        loss = model.train().double()(ids, labels=ids).loss
        loss.backward()
        return {name: x.grad.numpy() for name, x in model.named_parameters()}, loss.item()

    def elsewhere():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", trust_remote_code=True)
        return learn(loaded)

    gradients, loss = without_diffattn(elsewhere)
    expected, expected_loss = learn(model)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert abs(expected[name]).max() > 0
        torch.testing.assert_close(
            torch.tensor(gradient), torch.tensor(expected[name]), rtol=1e-9, atol=1e-9
        )


@pytest.mark.scheduled
def test_it_saves_itself_again(make_config, build, ids, tmp_path, without_diffattn):
    """As any code of the hub does: the second folder loads where only the first was known."""
    build(make_config("diff_v2", pad_token_id=0)).save_pretrained(tmp_path / "first")

    def elsewhere():
        first = AutoModelForCausalLM.from_pretrained(tmp_path / "first", trust_remote_code=True)
        first.save_pretrained(tmp_path / "second")
        second = AutoModelForCausalLM.from_pretrained(tmp_path / "second", trust_remote_code=True)
        scored = AutoModelForSequenceClassification.from_pretrained(
            tmp_path / "first", trust_remote_code=True, num_labels=3
        )
        with torch.no_grad():
            same = torch.equal(first.eval()(ids).logits, second.eval()(ids).logits)
            return same, tuple(scored(ids).logits.shape)

    assert without_diffattn(elsewhere) == (True, (2, 3))
    first, second = (
        DiffTransformerForCausalLM.from_pretrained(tmp_path / name) for name in ("first", "second")
    )
    assert first.config.settings() == second.config.settings()
    assert torch.equal(first.eval()(ids).logits, second.eval()(ids).logits)


def test_scores_beyond_the_range_of_float16(make_config, build, ids, tmp_path, without_diffattn):
    build(make_config("diff", pad_token_id=0)).save_pretrained(tmp_path / "folder")

    def elsewhere():
        path, options = tmp_path / "folder", {"trust_remote_code": True}
        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", **options)
        with torch.no_grad():
            for layer in model.model.layers:
                for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                    projection.weight *= 300 / projection.weight.std()
            return model.half()(ids).logits.isfinite().all().item()

    assert without_diffattn(elsewhere)


def test_it_needs_nothing_but_torch_and_transformers():
    imported = imports_of(MODEL_FILE.read_text(encoding="utf-8"), "folder")
    packages = {module.name.partition(".")[0] for module in imported}
    assert packages - set(sys.stdlib_module_names) == {"torch", "transformers"}
