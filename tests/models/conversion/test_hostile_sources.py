"""What is no model, or not what it says: one line names what was found, nothing is written."""

import json
import os
import pickle
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM, Qwen3ForCausalLM

import diffattn.models.conversion.convert as writer
from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.folders import new_folder
from diffattn.files.io import clean_leftovers
from diffattn.models.conversion import layouts
from diffattn.models.conversion.convert import convert
from model_folders import WEIGHTS, edit_config, edit_weights


@pytest.fixture(scope="module")
def whole(diffllama):
    return diffllama()


@pytest.fixture
def given(whole, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(whole, tmp_path / "given")


def pickled(folder):
    (folder / WEIGHTS).unlink()
    torch.save({"weight": torch.zeros(2)}, folder / "pytorch_model.bin")


def pickled_in_disguise(folder):
    (folder / WEIGHTS).write_bytes(pickle.dumps({"weight": [0.0] * 99}))


def truncated(folder):
    path = folder / WEIGHTS
    os.truncate(path, path.stat().st_size - 1)


def index_alone(folder):
    (folder / WEIGHTS).unlink()
    table = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(table))


def without_config(folder):
    (folder / "config.json").unlink()


def of_no_layout(folder):
    without_config(folder)
    save_file({"encoder.weight": torch.zeros(2, 2)}, folder / WEIGHTS)


def without_lambda(folder):
    without_config(folder)
    edit_weights(folder, lambda state: [state.pop(n) for n in list(state) if "lambda_" in n])


NAME = "model.layers.1.self_attn.k_proj.weight"
CASES = {
    "pickled": (pickled, r"must hold safetensors, got pickled weights \(pytorch_model\.bin\)"),
    "pickled in disguise": (pickled_in_disguise, "must be whole safetensors, got"),
    "truncated": (truncated, "must be whole safetensors, got"),
    "a shard is missing": (index_alone, "must hold safetensors|must hold model-00001"),
    "two files, no index": (
        lambda folder: (
            shutil.copyfile(folder / WEIGHTS, folder / "other.safetensors")
            and (folder / WEIGHTS).rename(folder / "one.safetensors")
        ),
        r"must hold safetensors \(model\.safetensors\), got 2 without an index",
    ),
    "of no layout": (of_no_layout, r"must be of one layout, got tensors of none \('encoder"),
    "ambiguous V1": (without_config, "got tensors that fit diffattn and diffllama, and no config"),
    "ambiguous softmax": (without_lambda, "got tensors that fit diffattn and llama, and no config"),
    "foreign": (
        lambda folder: edit_config(folder, model_type="gpt2"),
        "model_type must be one of diff_transformer, diffllama, .*, got 'gpt2'",
    ),
    "quantized": (
        lambda folder: edit_config(folder, quantization_config={"bits": 4}),
        "must hold plain weights, got a quantization_config",
    ),
    "heads in quotes": (
        lambda folder: edit_config(folder, num_attention_heads="4", head_dim=None),
        "num_attention_heads",
    ),
    "more layers than there are": (
        lambda folder: edit_config(folder, num_hidden_layers=3),
        r"must hold model\.layers\.2\..* got none",
    ),
    "fewer layers than there are": (
        lambda folder: edit_config(folder, num_hidden_layers=1),
        r"must hold only tensors of Hugging Face DiffLlama, got model\.layers\.1\.",
    ),
    "sizes beyond the weights": (
        lambda folder: edit_config(folder, hidden_size=2**30),
        "hidden_size must fit the weights",
    ),
    "another shape": (
        lambda folder: edit_weights(folder, lambda s: s.update({NAME: s[NAME][:-8].clone()})),
        r"must hold model\.layers\.1\.self_attn\.k_proj\.weight as \[32, 48\], got \[24, 48\]",
    ),
    "whole numbers": (
        lambda folder: edit_weights(folder, lambda s: s.update({NAME: s[NAME].int()})),
        "must be of F64, F32, F16, BF16, got I32",
    ),
    "not finite": (
        lambda folder: edit_weights(folder, lambda s: s[NAME].fill_(float("nan"))),
        "logits of source and result must be finite",
    ),
}
PUSHED = ("pickled", "truncated", "foreign")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c in PUSHED else pytest.mark.scheduled) for c in CASES]
)
def test_it_is_refused_and_nothing_is_written(case, given, tmp_path):
    damage, message = CASES[case]
    damage(given)
    with pytest.raises(CheckpointError, match=message) as raised:
        convert(str(given), "diffattn", tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["given"]


def test_an_unknown_layout_is_named(given, tmp_path):
    with pytest.raises(ConfigError, match="got 'difllama'"):
        convert(str(given), "diffattn", tmp_path / "out", layout="difllama")


@pytest.mark.scheduled
def test_names_of_several_layouts_are_refused_until_one_is_named(
    original, missing_settings, tmp_path
):
    """The original V2 code and this package name their tensors alike."""
    folder = original(version=2).save(tmp_path / "given")
    with pytest.raises(CheckpointError, match=r"fit diffattn and original_v2, and no config.json"):
        convert(str(folder), "diffattn", tmp_path / "out", changes=missing_settings)
    with pytest.raises(CheckpointError, match=r"config.json, which says how many heads a DIFF"):
        convert(
            str(folder), "diffllama", tmp_path / "out", layout="diffattn", changes=missing_settings
        )
    convert(
        str(folder), "diffattn", tmp_path / "out", layout="original_v2", changes=missing_settings
    )


@pytest.mark.scheduled
def test_one_pickled_file_is_refused(tmp_path):
    torch.save({}, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match=r"got pickled weights .weights.pth., which run code"):
        convert(str(tmp_path / "weights.pth"), "diffattn", tmp_path / "out")


def test_wrong_logits_are_noticed_and_nothing_is_kept(whole, tmp_path, monkeypatch):
    """The control of every check here: a table with the wrong order of heads."""
    wrong = replace(layouts.LAYOUTS["diffllama"], pairs="adjacent")
    monkeypatch.setitem(layouts.LAYOUTS, "diffllama", wrong)
    with pytest.raises(CheckpointError, match="the result must have the source's logits"):
        convert(str(whole), "diffattn", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.scheduled
def test_leftovers_of_a_killed_process_alone_are_removed(whole, tmp_path):
    left, other = (tmp_path / f".{name}.99999999.tmp" for name in ("out", "another"))
    other.mkdir()
    left.mkdir()
    (left / "model-00001-of-00002.safetensors").write_bytes(b"half")
    with new_folder(tmp_path / "out") as busy:
        clean_leftovers(tmp_path, "out")
        assert busy.is_dir()
    left.mkdir(exist_ok=True)
    convert(str(whole), "diffattn", tmp_path / "out")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [other.name, "out"]


@pytest.mark.scheduled
def test_an_interruption_and_a_full_disk_leave_nothing(whole, tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer, "compute_logits", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert(str(whole), "diffattn", tmp_path / "out")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(ConfigError, match=r"must have [\d,]+ bytes free, got 1,000"):
        convert(str(whole), "diffattn", tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.scheduled
def test_a_folder_in_use_is_refused(whole, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="must be empty or new, got other files"):
        convert(str(whole), "diffattn", tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


@pytest.mark.scheduled
def test_one_file_at_a_time_is_in_memory(whole, tmp_path, monkeypatch):
    held = []
    save = writer.save_file

    def recorded(tensors, path, **options):
        held.append((len(tensors), sum(x.nbytes for x in tensors.values())))
        save(tensors, path, **options)

    monkeypatch.setattr(writer, "save_file", recorded)
    convert(str(whole), "diffattn", tmp_path / "out", shard_bytes=20_000)
    assert len(held) == len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    assert all(count == 1 or size <= 20_000 for count, size in held)


@pytest.mark.scheduled
def test_damage_is_noticed_by_the_manifest(whole, converted, tmp_path):
    converted_folder = converted(whole, "diffattn")
    edit_weights(converted_folder, lambda state: state[NAME].add_(1))
    with pytest.raises(CheckpointError, match=r"must be as manifest\.json recorded it"):
        convert(str(converted_folder), "diffllama", tmp_path / "out")
    convert(str(converted_folder), "diffllama", tmp_path / "out", verify=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pad_token_id", 61),
        ("num_key_value_heads", 3),
        ("hidden_act", "none of them"),
        ("rope_parameters", {"rope_type": "spiral", "rope_theta": 1e4}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": None}),
        ("rope_scaling", {"rope_type": [], "factor": 2.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", [LlamaForCausalLM, Qwen3ForCausalLM])
def test_a_wrong_value_of_another_familys_settings_is_named(llama, family, field, value, tmp_path):
    folder = llama(model=family)
    edit_config(folder, **{field: value})
    with pytest.raises(CheckpointError, match=field):
        convert(str(folder), "diff_v2", tmp_path / "out")


@pytest.mark.parametrize("none", [None, -1])
def test_padding_that_stands_for_none_is_left_out(llama, none, tmp_path):
    folder = llama()
    edit_config(folder, pad_token_id=none)
    convert(str(folder), "diff_v2", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["pad_token_id"] is None
