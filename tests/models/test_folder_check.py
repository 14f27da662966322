"""Sound folders pass the check of strangers' models, wherever they lie."""

import os
import re
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from diffattn.errors import CheckpointError
from diffattn.lab.data.corpora import Document
from diffattn.lab.data.tokenizer import train_tokenizer
from diffattn.models.folder_check import check_folder
from diffattn.models.weight_files import files_in
from model_folders import WEIGHTS, edit_config


def check(folder):
    check_folder("tiny", str(folder), files_in(folder))


@pytest.fixture
def folder(make_config, build, tmp_path):
    build(make_config("diff")).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_saved_models_pass_the_check(config, build, tmp_path):
    build(config).save_pretrained(tmp_path)
    check(tmp_path)


def test_shards_count_together(make_config, build, tmp_path):
    build(make_config("diff")).save_pretrained(tmp_path, max_shard_size="8KB")
    check(tmp_path)
    edit_config(tmp_path, hidden_size=10**5)
    message = (
        r"tiny/config.json: sizes must fit the weights, [\d,]+ numbers, got [\d,]+ parameters; "
        "the largest is hidden_size = 100000."
    )
    with pytest.raises(CheckpointError, match=message):
        check(tmp_path)
    edit_config(tmp_path, vocab_size=10**9)
    with pytest.raises(CheckpointError, match=r"vocab_size must fit the weights, [0-9,]+ numbers"):
        check(tmp_path)


def test_as_many_layers_as_there_are_tensors(folder):
    edit_config(folder, num_hidden_layers=10**7)
    with pytest.raises(CheckpointError, match="num_hidden_layers must be from 0 to 1,024"):
        check(folder)


def test_quantised_weights_are_not_counted(folder):
    """Several may stand in one number."""
    edit_config(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    weights = load_file(folder / WEIGHTS)
    save_file({k: x.flatten()[:9].clone() for k, x in weights.items()}, folder / WEIGHTS)
    check(folder)


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
        ("vocab_sise", 10, "unknown field 'vocab_sise'. Did you mean 'vocab_size'?"),
        ("sliding_window", 4, "sliding_window must be None, for a DIFF Transformer has no other"),
        ("fusion_config", {"x": True}, "fusion_config must be None, for a DIFF Transformer has no"),
        ("layer_lambda_init", 0.5, "must set nothing but settings, got 'layer_lambda_init' = 0.5"),
        ("_attn_implementation", "x", "must set nothing but settings, got '_attn_implementation'"),
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


_LOADS = """
import json, shutil, sys
from pathlib import Path
from diffattn.errors import DiffAttnError
from diffattn.lab.inference.language_model import LanguageModel

def load():
    try:
        print(LanguageModel.load("someone/tiny", device="cpu").facts()["parameters"])
    except DiffAttnError as error:
        print(error)

snapshot = Path(sys.argv[1])
load()
path = snapshot / "config.json"
path.write_text(json.dumps(json.loads(path.read_text()) | {"num_heads": 10**8}))
load()
shutil.rmtree(snapshot.parents[1])
load()
"""


@pytest.mark.scheduled
@pytest.mark.parametrize("size", ["1GB", "8KB"])
def test_a_name_on_the_hub_is_checked_in_its_cache(make_config, build, tmp_path, size):
    """The same files as transformers would fetch; here they are cached already."""
    commit = "0" * 40
    root = tmp_path / "hub" / "models--someone--tiny"
    snapshot = root / "snapshots" / commit
    model = build(make_config("diff", vocab_size=300))
    model.save_pretrained(snapshot, max_shard_size=size)
    documents = [Document(name="a", text="the city " * 50)]
    train_tokenizer(documents, vocab_size=280).save_pretrained(snapshot)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(commit)
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", _LOADS, str(snapshot)]
    output = subprocess.check_output(
        command, env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL, text=True, timeout=300
    )
    parameters, oversized, *gone = output.splitlines()
    assert parameters == str(sum(parameter.numel() for parameter in model.parameters()))
    assert oversized.startswith("someone/tiny/config.json: num_heads must fit the weights")
    assert len(gone) == 1
