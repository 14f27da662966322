"""Which folders carry the model's code, and that ours never runs it."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from diffattn.errors import CheckpointError
from diffattn.files.folders import verify_manifest, write_manifest
from diffattn.lab.data.corpora import Document
from diffattn.lab.data.tokenizer import train_tokenizer
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.conversion.convert import convert
from diffattn.models.loading import load_model
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.models.remote_code.saving import AUTO_MAP, FILE_NAME, MODEL_FILE

TRAP = "raise SystemExit('code of a folder was run')\n"


@pytest.fixture
def folder(make_config, build, tmp_path):
    model = build(make_config("diff"))
    model.save_pretrained(tmp_path / "folder")
    return tmp_path / "folder"


def settings(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def test_a_saved_model_names_its_code_and_has_it(folder):
    """TRL's ``create_model_from_path`` reads ``config.auto_map`` of classes of other packages."""
    assert settings(folder)["auto_map"] == AutoConfig.from_pretrained(folder).auto_map == AUTO_MAP
    assert (folder / FILE_NAME).exists()
    assert (folder / "README.md").exists()


def test_without_code_nothing_points_to_it(make_config, build, tmp_path):
    model = build(make_config("diff"))
    before = model.config.to_dict()
    model.save_pretrained(tmp_path, remote_code=False)
    assert "auto_map" not in settings(tmp_path)
    assert model.config.auto_map == AUTO_MAP
    written = {"config.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == written
    model.save_pretrained(tmp_path)
    assert model.config.to_dict() == before | {
        name: model.config.to_dict()[name] for name in ("architectures", "dtype")
    }
    assert "auto_map" not in model.config.settings()


def test_a_configuration_alone_names_code_only_beside_it(make_config, folder, tmp_path):
    make_config("diff").save_pretrained(tmp_path / "plain")
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["config.json"]
    assert "auto_map" not in settings(tmp_path / "plain")
    DiffTransformerConfig.from_pretrained(folder).save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / FILE_NAME).read_bytes() == (folder / FILE_NAME).read_bytes()


def test_the_folder_of_a_control_has_no_code_which_would_not_run_it(make_config, build, tmp_path):
    build(make_config("diff,diff_v2_added")).save_pretrained(tmp_path)
    assert not (tmp_path / FILE_NAME).exists()
    assert "auto_map" not in settings(tmp_path)


def test_a_converted_model_has_its_code(make_config, build, tmp_path):
    build(make_config("softmax")).save_pretrained(tmp_path / "softmax", remote_code=False)
    convert(str(tmp_path / "softmax"), "diff_v2", tmp_path / "out")
    assert settings(tmp_path / "out")["auto_map"] == AUTO_MAP
    assert (tmp_path / "out" / FILE_NAME).read_bytes() == MODEL_FILE.read_bytes()


def test_code_in_a_folder_is_never_run_by_the_package(folder):
    """Not even by somebody who trusts it, as our classes are known by their model type."""
    (folder / FILE_NAME).write_text(TRAP, encoding="utf-8")
    train_tokenizer([Document(name="0", text="a text")], vocab_size=260).save_pretrained(folder)
    model, _ = load_model(str(folder))
    assert type(model) is DiffTransformerForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert type(model) is DiffTransformerForCausalLM
    AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def test_code_of_an_unknown_type_is_never_run(folder):
    changed = settings(folder) | {"model_type": "unknown_type"}
    (folder / "config.json").write_text(json.dumps(changed), encoding="utf-8")
    (folder / FILE_NAME).write_text(TRAP, encoding="utf-8")
    with pytest.raises(CheckpointError):
        load_model(str(folder))


def test_the_manifest_holds_the_code_and_not_the_card(folder):
    write_manifest(folder)
    (folder / "README.md").write_text("# Mine\n", encoding="utf-8")
    verify_manifest(folder)
    (folder / FILE_NAME).write_text(TRAP, encoding="utf-8")
    with pytest.raises(CheckpointError, match=FILE_NAME):
        verify_manifest(folder)


def test_a_folder_may_be_named_as_transformers_names_it(make_config, tmp_path):
    """By keyword, and ``None`` with weights of one's own."""
    model = DiffTransformerForCausalLM(make_config("diff"))
    model.save_pretrained(tmp_path)
    again = DiffTransformerForCausalLM.from_pretrained(pretrained_model_name_or_path=tmp_path)
    bare = DiffTransformerForCausalLM.from_pretrained(
        pretrained_model_name_or_path=None, config=model.config, state_dict=model.state_dict()
    )
    for other in (again, bare):
        for name, weight in model.state_dict().items():
            assert torch.equal(other.state_dict()[name], weight)
