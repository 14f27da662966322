"""Fresh processes without ``diffattn``: stock tools on a saved folder."""

import pytest

from diffattn.lab.data.corpora import Document
from diffattn.lab.data.tokenizer import train_tokenizer
from diffattn.models.config.attention_types import ATTENTION_TYPES


@pytest.fixture
def folder(request, make_config, build, tmp_path):
    """A model and its tokenizer, as ``diffattn train`` leaves them."""
    tokenizer = train_tokenizer(
        [Document(name="0", text="the cat sat on the mat, red or blue")], vocab_size=260
    )
    model = build(make_config(request.param, vocab_size=len(tokenizer)))
    model.save_pretrained(tmp_path / "folder")
    tokenizer.save_pretrained(tmp_path / "folder")
    return tmp_path / "folder"


@pytest.mark.scheduled
@pytest.mark.parametrize("folder", ATTENTION_TYPES, indirect=True)
def test_it_generates_and_trains_with_a_stock_trainer(folder, script, tmp_path):
    assert script("use", folder, tmp_path / "out").endswith("used\n")


@pytest.mark.scheduled
@pytest.mark.parametrize("folder", ["diff"], indirect=True)
def test_the_harness_evaluates_the_folder(folder, script, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    assert script("harness", folder, tmp_path).splitlines()[-1].startswith("acc ")
