"""The model's code in one file, where ``diffattn`` is missing: the same results."""

import ast
import shutil
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.remote_code import sources, substitutes
from diffattn.models.remote_code.single_file import single_file
from diffattn.ops.inputs import backends

GREEDY = {"max_new_tokens": 8, "do_sample": False}
TYPES = [
    pytest.param(name, {}, marks=[] if name == "diff" else [pytest.mark.scheduled], id=name)
    for name in ATTENTION
]
OPTIONAL = {"qkv_bias": True, "qk_norm": True}


def results(model, ids, mask):
    """Greedy tokens of a padded batch with both kinds of cache, and logits in float64."""
    tokens = [
        model.generate(ids, attention_mask=mask, cache_implementation=kind, **GREEDY).tolist()
        for kind in (None, "static")
    ]
    model.double()
    with torch.no_grad():
        logits = [
            model(ids).logits,
            model(ids, attention_mask=mask).logits,
            model(ids.repeat(1, 12)).logits,  # too long for whole maps on a CPU
        ]
        model.set_attn_implementation("eager" if model.config.attention.map_norm else "sdpa")
        if not model.config.attention.map_norm:
            logits.append(model(ids, attention_mask=mask).logits[:, 4:])
    return tokens, [x.numpy() for x in logits]


@pytest.mark.parametrize(
    ("name", "options"),
    [*TYPES, pytest.param("diff_v2", OPTIONAL, marks=pytest.mark.scheduled, id="options")],
)
def test_it_computes_what_the_package_computes(
    name, options, make_config, build, ids, tmp_path, without_diffattn
):
    model = build(make_config(name, pad_token_id=0, max_position_embeddings=256, **options))
    model.save_pretrained(tmp_path / "folder")
    mask = torch.ones_like(ids)
    mask[0, :4] = 0

    def elsewhere():
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", trust_remote_code=True)
        assert type(loaded).__module__.startswith("transformers_modules.")
        return results(loaded.eval(), ids, mask)

    tokens, logits = without_diffattn(elsewhere)
    expected_tokens, expected = results(model, ids, mask)
    assert tokens == expected_tokens
    for got, wanted in zip(logits, expected, strict=True):
        torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=1e-10, atol=1e-10)


@pytest.mark.scheduled
def test_a_model_begins_and_learns_as_in_the_package(
    make_config, build, ids, tmp_path, without_diffattn
):
    """The same seed gives the same weights, and those the same gradients."""
    config = make_config("diff")
    build(config).save_pretrained(tmp_path / "folder")

    def learned(config):
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
        loss = model(ids, labels=ids).loss
        loss.backward()
        return {name: x.grad.numpy() for name, x in model.named_parameters()}, loss.item()

    def elsewhere():
        from transformers import AutoConfig

        return learned(AutoConfig.from_pretrained(tmp_path / "folder", trust_remote_code=True))

    gradients, loss = without_diffattn(elsewhere)
    expected, expected_loss = learned(config)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert abs(expected[name]).max() > 0
        torch.testing.assert_close(
            torch.tensor(gradient), torch.tensor(expected[name]), rtol=1e-4, atol=1e-6
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


@pytest.mark.scheduled
def test_a_backend_of_the_package_is_named(make_config, build, ids, tmp_path, without_diffattn):
    build(make_config("diff", attention_backend="chunked")).save_pretrained(tmp_path / "folder")

    def elsewhere():
        from_folder = AutoModelForCausalLM.from_pretrained
        model = from_folder(tmp_path / "folder", trust_remote_code=True)
        with pytest.raises(Exception, match="comes with the package diffattn") as raised:
            model(ids)
        chosen = from_folder(tmp_path / "folder", trust_remote_code=True, attention_backend="auto")
        return type(raised.value).__name__, tuple(chosen(ids).logits.shape)

    assert without_diffattn(elsewhere) == ("BackendError", (2, 11, 61))


def test_it_needs_nothing_but_torch_and_transformers():
    tree = ast.parse(single_file())
    imported = {
        (node.module or "").partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    } | {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    # transformers itself depends on huggingface_hub.
    assert imported - set(sys.stdlib_module_names) == {"torch", "transformers", "huggingface_hub"}


def test_it_says_where_it_is_from_and_stays_small():
    text = single_file()
    head = text[: text.index("import ")]
    assert "Made by diffattn " in head
    assert "Licence: Apache-2.0" in head
    assert 50_000 < len(text.encode()) < 160_000


@pytest.mark.scheduled
def test_it_follows_from_the_sources_alone(tmp_path, monkeypatch):
    """Made anew it is the same text; a formula that changes in the package changes there."""
    assert single_file.__wrapped__() == single_file()
    package = sources._PACKAGE
    monkeypatch.setattr(sources, "_PACKAGE", tmp_path / "diffattn")
    shutil.copytree(package, tmp_path / "diffattn", ignore=shutil.ignore_patterns("report"))
    formula = tmp_path / "diffattn" / "ops" / "lambda_param.py"
    text = formula.read_text(encoding="utf-8")
    assert "return 0.8 - 0.6 *" in text
    formula.write_text(text.replace("return 0.8 - 0.6 *", "return 0.7 - 0.5 *"), encoding="utf-8")
    assert single_file.__wrapped__() == single_file().replace(
        "return 0.8 - 0.6 *", "return 0.7 - 0.5 *"
    )


@pytest.mark.parametrize("op", ["diff_attention", "softmax_attention", "paged_decode"])
def test_it_knows_every_backend_and_the_limits_of_auto(op):
    assert sorted(substitutes.names(op)) == sorted(backends.names(op))
    for limit in ("_FEW_QUERIES", "_FEW_SCORES"):
        assert getattr(substitutes, limit) == getattr(backends, limit)
