"""``diffattn inspect`` as a user runs it."""

import shutil

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from diffattn.lab.data.corpora import Document
from diffattn.lab.data.tokenizer import train_tokenizer
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from model_folders import tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    return tiny_folder(path, "diff", "abc", num_hidden_layers=2, max_position_embeddings=64)


def saved_with_tokenizer(path, network):
    network.save_pretrained(path)
    train_tokenizer([Document(name="a", text="abc")], vocab_size=260).save_pretrained(path)
    return path


def test_a_run_becomes_a_page(cli, folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(folder, run / "model")
    out = tmp_path / "new" / "page.html"
    done = cli("inspect", run, f"again={run}", "--text", "abc", "--out", out)
    assert (done.code, done.out) == (0, f"{out}\n"), done
    steps = [
        f"{name}: {step}" for name in ("run", "again") for step in ("loading", "reading 4 tokens")
    ]
    assert done.err.splitlines() == [*steps, "writing the page"]
    page = out.read_text(encoding="utf-8")
    assert "<h1>Where run, again look in “abc”</h1>" in page
    assert page.count('<article class="card"') == 2
    assert "diff · " in page
    again = cli("inspect", run, "--text", "abc", "--out", out)  # its own page
    assert again.code == 0
    assert "<h1>Where run looks in “abc”</h1>" in out.read_text(encoding="utf-8")


def test_without_a_text_an_example_is_read_into_a_page_below_runs(
    cli, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli("inspect", folder).out == "runs/attention-tiny.html\n"
    page = (tmp_path / "runs" / "attention-tiny.html").read_text(encoding="utf-8")
    assert "<h1>Where tiny looks in “Return the first item of the list." in page
    assert "the text goes on" in page  # the model takes 64 tokens


def test_a_file_layers_and_a_cut(cli, folder, tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "page.html"
    text.write_text("abc " * 40)
    options = ("--file", text, "--layers", "1", "--max-tokens", "8", "--cut", "--no-bos")
    assert cli("inspect", folder, *options, "--out", out).code == 0
    page = out.read_text(encoding="utf-8")
    assert "tiny: 1 of 2 layers are on this page." in page
    assert "The first 8 of 160 tokens are shown; the text goes on." in page
    assert "endoftext" not in page


def test_another_file_is_replaced_only_by_force(cli, fails, folder, tmp_path):
    out = tmp_path / "thesis.html"
    out.write_text("mine")
    options = ("inspect", folder, "--text", "abc", "--out", out)
    assert "must be a new file or a page of 'diffattn inspect'" in fails(*options, code=2)
    assert out.read_text() == "mine"
    assert "must be a file, got a folder" in fails(*options[:-1], tmp_path, code=2)
    assert cli(*options, "--force").code == 0
    assert "diffattn inspect" in out.read_text(encoding="utf-8")


def test_models_without_attention_maps(fails, tmp_path):
    out = tmp_path / "page.html"
    sizes = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}
    network = MambaForCausalLM(MambaConfig(vocab_size=260, **sizes))
    mamba = saved_with_tokenizer(tmp_path / "mamba", network)
    line = fails("inspect", mamba, "--text", "abc", "--out", out, code=2)
    assert "mamba: layers must keep keys and values, got" in line
    assert not out.exists()


def test_a_broken_model_is_said(fails, folder, tmp_path):
    network = DiffTransformerForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        network.model.layers[1].self_attn.q_proj.weight.fill_(float("nan"))
    broken = saved_with_tokenizer(tmp_path / "broken", network)
    line = fails("inspect", broken, "--text", "abc", "--out", tmp_path / "page.html", code=1)
    assert "attention maps must be finite" in line
    assert "model.layers.1.self_attn.q_proj.weight holds NaN" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--needle",), "must have at most the 64 tokens of tiny, got 256"),
        (("--file", "."), "must be a regular file, got a folder"),
        (("--text", "a", "--layers", "0,0"), "--layers: must be different layers"),
    ],
    ids=str,
)
def test_misuse_is_one_line_and_writes_nothing(
    fails, folder, tmp_path, monkeypatch, options, message
):
    monkeypatch.chdir(tmp_path)
    assert message in fails("inspect", folder, *options, "--out", "page.html", code=2)
    assert list(tmp_path.iterdir()) == []
