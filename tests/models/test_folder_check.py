"""Sound folders pass the check of strangers' models, wherever they lie."""

import json
import os
import re

import pytest
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from diffattn.errors import CheckpointError
from diffattn.models.checkpoint_folder import files_in
from diffattn.models.folder_check import check_folder
from model_folders import WEIGHTS, edit_config


def check(folder):
    check_folder("tiny", str(folder), files_in(folder))


@pytest.fixture
def folder(make_config, build, tmp_path):
    build(make_config("diff")).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_shards_count_together(make_config, build, tmp_path):
    build(make_config("diff")).save_pretrained(tmp_path, max_shard_size="8KB")
    check(tmp_path)
    for change, message in (
        ({"hidden_size": 10**5}, r"config.json: sizes must fit .* largest is hidden_size = 100000"),
        ({"vocab_size": 10**9}, r"vocab_size must fit the weights, [0-9,]+ numbers"),
    ):
        edit_config(tmp_path, **change)
        with pytest.raises(CheckpointError, match=message):
            check(tmp_path)


def test_quantised_weights_are_not_counted(folder):
    """Several may stand in one number."""
    edit_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    weights = load_file(folder / WEIGHTS)
    save_file({k: x.flatten()[:9].clone() for k, x in weights.items()}, folder / WEIGHTS)
    check(folder)


def test_fields_of_public_models_that_look_like_faults(make_config, build, tmp_path):
    """Of Gemma 3n and Qwen1.5-MoE, of AMD's quantiser, and of tokenizers from old versions."""
    llama = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, vocab_size_per_layer_input=262_144,
        shared_expert_intermediate_size=5_632,
    )  # fmt: skip
    LlamaForCausalLM(llama).save_pretrained(tmp_path)
    tokenizer = {"special_tokens_map_file": "/content/tokenizer/special_tokens_map.json"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    check(tmp_path)
    weight = {"weight": {"dtype": "fp8_e4m3"}}
    edit_config(tmp_path, quantization_config={"quant_method": "quark", "layers": weight})
    check(tmp_path)


def test_unknown_fields_of_a_folder_give_a_warning(make_config, build, tmp_path):
    """A keyword of the caller's, and a field that a trainer adds to the file."""
    with pytest.warns(UserWarning, match="d_model = 64 is kept and changes nothing"):
        config = make_config("diff", d_model=64)
    build(config).save_pretrained(tmp_path)
    edit_config(tmp_path, unsloth_version="2026.11")
    with pytest.warns(UserWarning, match="is kept and changes nothing") as caught:
        check(tmp_path)
    names = {str(warning.message).split()[1] for warning in caught}
    assert names == {"d_model", "unsloth_version"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_hidden_layers", 10**7, "num_hidden_layers must be from 0 to 1,024"),  # of tensors
        (
            "fusion_config",
            {"x": True},
            "fusion_config must be None, as a DIFF Transformer lacks it",
        ),
        ("layer_lambda_init", 0.5, "must hold nothing but known settings, got 'layer_lambda_init'"),
    ],
)
def test_fields_that_would_change_the_model_are_refused(folder, name, value, message):
    edit_config(folder, **{name: value})
    with pytest.raises(CheckpointError, match=re.escape(message)):
        check(folder)


def test_a_folder_without_weights_is_left_to_transformers(folder):
    (folder / WEIGHTS).unlink()
    check(folder)


def test_a_pipe_is_no_file(folder):
    (folder / WEIGHTS).unlink()
    os.mkfifo(folder / WEIGHTS)
    with pytest.raises(CheckpointError, match="must be a file"):
        check(folder)
    os.mkfifo(folder / "added_tokens.json")
    with pytest.raises(CheckpointError, match="got no regular file"):
        check(folder)
