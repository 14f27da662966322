"""Impossible settings are refused in one line that names them."""

import json

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.catalog.recipes.catalog import recipe
from diffattn.lab.training.settings import apply_settings
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.twins import parameter_count


def changed(*settings):
    return apply_settings(recipe("smoke"), settings)


def test_settings_reach_their_section_and_the_last_one_counts():
    run = changed(
        "train.num_steps = 50",
        "train.num_steps=60",
        "train.learning_rate=1e-2",
        "model.tie_word_embeddings=false",
        "data.tokenizer=null",
        "train.precision=bfloat16",
        "model.attention_backend=reference",
    )
    assert (run.train.num_steps, run.train.learning_rate) == (60, 1e-2)
    assert (run.train.precision, run.model.attention_backend) == ("bfloat16", "reference")
    assert run.model.tie_word_embeddings is False
    assert run.data.tokenizer is None
    assert changed().resolved() == recipe("smoke").resolved()


def test_vocabulary_and_context_follow_the_data_unless_set():
    run = changed("data.vocab_size=600", "train.seq_len=64")
    assert (run.model.vocab_size, run.model.max_position_embeddings) == (600, 64)
    run = changed("data.vocab_size=600", "model.vocab_size=640")
    assert (run.data.vocab_size, run.model.vocab_size) == (600, 640)
    run = changed("train.seq_len=64", "model.max_position_embeddings=256")
    assert (run.train.seq_len, run.model.max_position_embeddings) == (64, 256)


def test_derived_values_follow_unless_set():
    assert changed("model.num_heads=8").model.num_kv_heads == 8
    assert changed("model.num_heads=8", "model.num_kv_heads=2").model.num_kv_heads == 2
    grouped = apply_settings(changed("model.num_kv_heads=2"), ["model.num_heads=8"])
    assert grouped.model.num_kv_heads == 2  # no default, so somebody's choice
    default = DiffTransformerConfig(hidden_size=96, num_heads=4, head_dim=16)
    assert changed("model.hidden_size=96").model.intermediate_size == default.intermediate_size
    wide = changed("model.hidden_size=96", "model.intermediate_size=100")
    assert wide.model.intermediate_size == 100
    shared = ["model.attention_type=shared_diff", "model.shared_rank=4"]
    assert apply_settings(changed(*shared), ["model.head_dim=32"]).model.shared_rank == 8
    assert changed("model.hidden_size=96").model.embedding_multiplier == 96**0.5
    assert changed("model.embedding_multiplier=2.0").model.embedding_multiplier == 2
    once = changed("model.embedding_multiplier=2.0")
    assert apply_settings(once, ["model.hidden_size=96"]).model.embedding_multiplier == 2


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("softmax", "head_norm", True),
        ("diff", "lambda_init", 0.5),
        ("shared_diff", "shared_rank", 2),
    ],
)
def test_settings_of_a_type_are_the_twins(kind, field, value):
    setting = f"model.{field}={json.dumps(value)}"
    model = apply_settings(recipe("smoke"), [setting], attention=kind).model
    assert model.attention_type == kind
    assert getattr(model, field) == value
    with pytest.raises(ConfigError, match="lambda_init"):
        apply_settings(recipe("smoke"), ["model.lambda_init=0.5"], attention="diff_v2")


@pytest.mark.parametrize("kind", ["diff", "shared_diff"])
def test_what_follows_is_changed_before_the_twin(kind):
    """A rank that follows head_dim is no setting of the twin's: its FFN matches the new rank."""
    given = recipe("shared-diff-r32")
    original = apply_settings(given, ["model.head_dim=64"]).model
    assert original.shared_rank == 16 == given.model.shared_rank // 2
    twin = apply_settings(given, ["model.head_dim=64"], attention=kind).model
    assert twin == original.twin(kind).config
    assert parameter_count(twin) == pytest.approx(parameter_count(original), rel=1e-3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.num_steps", "--set: must be KEY=VALUE, got 'train.num_steps'"),
        ("train.lr=5", "Did you mean 'train.learning_rate'?"),
        ("zebra=1", "unknown key 'zebra'. Keys: model.attention_type, "),
        ("train.num_steps=5.0", "--set: train.num_steps must be a whole number, got 5.0"),
        ("model.lambda_init=[0.1, Infinity]", "--set: model.lambda_init must be finite"),
        ("model.attention_backend=chunk", "Did you mean 'chunked'?"),
        ("model.vocab_size=500", "RunConfig: model.vocab_size must be at least data.vocab_size"),
        ("model.max_position_embeddings=16", "must be at least train.seq_len="),
        ("data.vocab_size=100", "data.vocab_size must be at least 257"),
        ("data.validation_fraction=0", "data.validation_fraction must be between 0 and 1"),
        ("train.max_grad_norm=1e-320", "must be 0 or at least 1.18e-38 in size, got 1e-320"),
        ("train.precision=float16", "--set: train.precision must be 'float32' or 'bfloat16'"),
        ("train.batch_tokens=100", "train.batch_tokens must be a multiple of seq_len="),
        ("train.warmup_steps=900", "train.warmup_steps must be 0 or more and less than num_steps="),
        ("train.micro_batch_sequences=3", "train.micro_batch_sequences must be a divisor of"),
        ("guard.limit=0", "guard.limit must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be(setting, message):
    with pytest.raises(ConfigError) as error:
        changed(setting)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
