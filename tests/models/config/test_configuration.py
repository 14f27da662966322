"""The configuration: defaults, derived fields, what it refuses, and what it writes."""

import json

import numpy as np
import pytest
from transformers import AutoConfig

from diffattn.errors import ConfigError
from diffattn.models.config.settings import OPTIONS
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.ops.inputs.formulas import lambda_init
from diffattn.ops.inputs.numbers import plain
from model_folders import edit_config

# Heads of the one attention call under Hugging Face's kernels, in units of num_heads and
# num_kv_heads: V1 calls with [q1, q2, q1, q2] and stores [k1, k2, k1, k2] in a paged cache.
PHYSICAL_HEADS = {
    "softmax": (1, 1), "diff": (4, 4), "diff_v2": (2, 1), "shared_diff": (4, 4),
    "gated_head": (1, 1), "gated_element": (1, 1), "grouped_diff": (4, 4), "dex": (1, 1),
    "softmax,diff": (4, 4),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "head_dim"), [("softmax", 64), ("diff", 32), ("diff_v2", 64), ("shared_diff", 32)]
)
def test_default_heads_fill_the_hidden_size(kind, head_dim):
    config = DiffTransformerConfig(attention_type=kind, hidden_size=512, num_heads=8)
    assert config.head_dim == head_dim
    assert config.num_kv_heads == 8
    assert config.shared_rank == (head_dim // 4 if kind == "shared_diff" else None)
    assert config.uses_head_norm is (kind in ("diff", "shared_diff"))


@pytest.mark.parametrize(("hidden_size", "width"), [(1536, 4096), (2048, 5440), (16, 64)])
def test_default_ffn_is_the_multiple_of_64_nearest_to_8_thirds(hidden_size, width):
    config = DiffTransformerConfig(hidden_size=hidden_size, num_heads=4)
    assert config.intermediate_size == width


def test_physical_heads_are_derived_and_read_only(config):
    """Told before the sizes that follow from heads which were not asked for."""
    queries, keys = PHYSICAL_HEADS[config.attention_type]
    assert config.num_attention_heads == queries * config.num_heads
    assert config.num_key_value_heads == keys * config.num_kv_heads
    asked = {"attention_type": config.attention_type.split(",")[0], "hidden_size": 64}
    for name in ("num_attention_heads", "num_key_value_heads"):
        with pytest.raises(AttributeError):
            setattr(config, name, 7)
        message = rf"{name} must be left out or \d+, as num_heads = 6 and num_kv_heads = \d set"
        with pytest.raises(ConfigError, match=message):
            DiffTransformerConfig(**asked, **{name: 7})


def test_round_trip_through_a_folder(config, tmp_path):
    """With the head counts that other libraries read: by them peft makes a prefix, for one."""
    config.save_pretrained(tmp_path)
    for written in (json.loads((tmp_path / "config.json").read_text()), config.to_dict()):
        assert written["num_attention_heads"] == config.num_attention_heads
        assert written["num_key_value_heads"] == config.num_key_value_heads
        assert (written["num_heads"], written["head_dim"]) == (4, 8)
    assert not {"num_attention_heads", "num_key_value_heads"} & config.settings().keys()
    assert type(config)(**config.to_dict()).settings() == config.settings()
    for config_class in (DiffTransformerConfig, AutoConfig):
        loaded = config_class.from_pretrained(tmp_path)
        assert type(loaded) is DiffTransformerConfig
        assert loaded.settings() == config.settings()


def test_a_folder_without_derived_heads_loads(make_config, tmp_path):
    """As it was written before."""
    config = make_config("diff")
    config.save_pretrained(tmp_path)
    edit_config(tmp_path, num_attention_heads=None, num_key_value_heads=None)
    assert DiffTransformerConfig.from_pretrained(tmp_path).settings() == config.settings()
    edit_config(tmp_path, num_attention_heads=5)
    with pytest.raises(ConfigError, match=r"num_attention_heads must be .* got 5"):
        DiffTransformerConfig.from_pretrained(tmp_path)


V2_SETTINGS = {
    "lambda_bias": True,
    "head_norm": True,
    "head_norm_affine": False,
    "head_norm_eps": 1e-3,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_theta": 640_000.0, "rope_type": "default"},
    "eos_token_id": [1, 2],
}


@pytest.mark.parametrize(
    ("kind", "settings", "lambda_inits"),
    [
        ("diff", {"lambda_init": 0.8}, [0.8, 0.8]),
        ("diff", {"lambda_init": [-0.0099, 0.45]}, [-0.0099, 0.45]),  # of a public checkpoint
        ("diff_v2", V2_SETTINGS, [lambda_init(0), lambda_init(1)]),
    ],
    ids=["constant", "list", "diff_v2"],
)
def test_settings_round_trip(make_config, tmp_path, kind, settings, lambda_inits):
    config = make_config(kind, **settings)
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.settings() == config.settings()
    assert config.settings().items() >= settings.items()
    assert [loaded.layer_lambda_init(layer) for layer in range(2)] == lambda_inits


def test_options_of_other_families_are_named_only_where_they_are_on(make_config, tmp_path):
    """Settings of runs go into the hashes of their records, and folders to older versions."""
    plain = make_config("diff_v2")
    plain.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    for names in (plain.settings(), plain.to_dict(), written):
        assert not {*OPTIONS} & names.keys()
    assert AutoConfig.from_pretrained(tmp_path).settings() == plain.settings()
    config = make_config("diff_v2", qkv_bias=True, qk_norm=True)
    assert config.settings() == plain.settings() | {"qkv_bias": True, "qk_norm": True}
    assert config.twin("softmax").config.settings().items() >= {"qk_norm": True}.items()
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).settings() == config.settings()


def test_whole_numbers_are_floats_where_those_are_meant(make_config, tmp_path):
    config = make_config("diff", embedding_multiplier=16, initializer_range=1, lambda_init=(0, 0.5))
    assert config.settings().items() >= {"lambda_init": [0.0, 0.5]}.items()
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert [written[x] for x in ("embedding_multiplier", "initializer_range")] == [16, 1]
    config.lambda_init = 1
    numbers = (config.embedding_multiplier, config.initializer_range, config.lambda_init)
    assert [type(x) for x in numbers] == [float] * 3
    for value in (True, "1", [True, 0.5]):
        with pytest.raises(ConfigError, match="'lambda_init'"):
            config.lambda_init = value
    with pytest.raises(ConfigError, match="'embedding_multiplier' expected float, got int"):
        config.embedding_multiplier = 10**400


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attention_type": "dif"}, "got 'dif'. Did you mean 'diff'\\?"),
        ({"attention_backend": "refrence"}, "Did you mean 'reference'\\?"),
        ({"vocab_sise": 10}, "unknown field 'vocab_sise'. Did you mean 'vocab_size'\\?"),
        ({"qk_norm": 1e-6}, "'qk_norm' expected bool, got float"),
        ({"hidden_size": "64"}, "'hidden_size' expected int, got str"),
        ({"num_heads": 0}, "num_heads must be 1 or more, got 0"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads must divide num_heads = 4, got 3"),
        ({"head_dim": 7}, "head_dim must be even and 2 or more for rotary positions, got 7"),
        ({"hidden_size": 4, "num_heads": 8}, "head_dim must be 1 or more, got 0"),
        ({"shared_rank": 4}, "shared_rank must be left out for attention_type 'diff', got 4"),
        ({"group_ratio": 2}, "group_ratio must be left out for attention_type 'diff', got 2"),
        ({"attention_type": "grouped_diff", "group_ratio": 4}, "must divide num_heads = 6, got 4"),
        (
            {"attention_type": "grouped_diff", "group_ratio": 3, "num_kv_heads": 6},
            "num_kv_heads must divide num_heads / group_ratio = 2, got 6",
        ),
        (
            {"attention_type": "diff_v2", "lambda_init": 0.0},
            "must be left out for attention_type 'diff_v2'",
        ),
        ({"lambda_bias": True}, "lambda_bias must be left out for attention_type 'diff', got True"),
        ({"lambda_init": [0.2]}, r"one value for each of 12 layers, got \[0.2\]"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_bad_settings_are_refused_in_one_line(fields, message):
    with pytest.raises(ConfigError, match=message) as caught:
        DiffTransformerConfig(**fields)
    assert str(caught.value).startswith("DiffTransformerConfig: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "asked", "neutral"),
    [
        ("attention_dropout", 0.5, 0.0),
        ("sliding_window", 4, None),
        ("layer_types", ["full_attention", "sliding_attention"], ["full_attention"] * 12),
        ("per_layer_config", {0: {"sliding_window": 4}}, None),
        ("hidden_act", "gelu", "silu"),
        ("attention_bias", True, False),
        ("text_config", {"hidden_size": 8}, None),
        ("transformers_weights", "other.safetensors", None),
    ],
)
def test_settings_of_other_families_are_refused(name, asked, neutral, tmp_path):
    """From a folder too; a value that says what holds anyway is taken, and not kept."""
    with pytest.raises(ConfigError, match=f"^DiffTransformerConfig: {name} must "):
        DiffTransformerConfig(**{name: asked})
    DiffTransformerConfig(**{name: neutral}).save_pretrained(tmp_path)
    assert name not in json.loads((tmp_path / "config.json").read_text())
    edit_config(tmp_path, **{name: asked})
    with pytest.raises(ConfigError, match=f"^DiffTransformerConfig: {name} must "):
        AutoConfig.from_pretrained(tmp_path)


def test_an_unknown_setting_gives_a_warning():
    with pytest.warns(UserWarning, match=r"rank = 3 is kept .* Did you mean 'shared_rank'\?"):
        DiffTransformerConfig(rank=3)


def test_hugging_face_keywords_still_work():
    config = DiffTransformerConfig(
        dtype="bfloat16", attn_implementation="sdpa", architectures=["X"], rope_theta=500.0
    )
    assert str(config.dtype) == "torch.bfloat16"
    assert config._attn_implementation == "sdpa"
    assert config.rope_parameters["rope_theta"] == 500.0


def test_settings_may_be_numbers_of_numpy(tmp_path):
    """They are saved as plain ones."""
    numbers = {
        "hidden_size": np.int64(64), "num_heads": np.uint8(4), "num_hidden_layers": np.int32(2),
        "rms_norm_eps": np.float32(0.5), "head_norm": np.bool_(False), "pad_token_id": np.int16(3),
        "lambda_init": np.array([0.25, 0.5]), "eos_token_id": [np.int64(2)],
        "rope_parameters": {"rope_type": "default", "rope_theta": np.float32(500)},
    }  # fmt: skip
    config = DiffTransformerConfig(**numbers)
    assert type(config.num_heads) is int
    assert config.settings() == DiffTransformerConfig(**plain(numbers)).settings()
    config.num_kv_heads = np.int64(2)
    config.save_pretrained(tmp_path)
    assert DiffTransformerConfig.from_pretrained(tmp_path).settings() == config.settings()
