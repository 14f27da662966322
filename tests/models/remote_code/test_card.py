"""The model card: its facts are the configuration's, and a user's own stays."""

import re

import pytest
import yaml

from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.remote_code.saving import model_card
from diffattn.models.twins import parameter_count


def table(card):
    return dict(re.findall(r"^\| ([^|]+?) \| (.+) \|$", card, flags=re.MULTILINE))


@pytest.mark.parametrize("name", ATTENTION_TYPES)
def test_the_card_states_the_facts_of_the_model(name, make_config):
    config = make_config(name)
    card = model_card(config)
    facts = table(card)
    assert facts["Attention"].startswith(f"`{name}`: ")
    assert facts["Parameters"] == f"{parameter_count(config):,}, embeddings included"
    assert facts["Heads"] == "4 of width 8, 2 for keys and values"
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "transformers"
    assert "license" not in head  # of the weights: not ours to say


def test_the_code_that_it_shows_loads_the_model(make_config, build, tmp_path):
    build(make_config("diff")).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    with_package, without_package = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert "trust_remote_code" not in with_package
    for block in (with_package, without_package):
        scope = {"FOLDER_OR_REPOSITORY": str(tmp_path)}
        exec(re.sub("^tokenizer = .*$", "", block, flags=re.MULTILINE), scope)
        assert scope["model"].config.attention_type == "diff"


def test_a_card_that_lies_there_is_kept(make_config, build, tmp_path):
    (tmp_path / "README.md").write_text("# Mine\n", encoding="utf-8")
    build(make_config("diff")).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "# Mine\n"
