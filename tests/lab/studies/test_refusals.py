"""Other people's folders, other settings, other text: refused, and nothing is touched."""

import shutil

import pytest

from diffattn.errors import ConfigError
from diffattn.files.io import read_json, write_json
from diffattn.lab.studies.reproduce import reproduce
from record_files import contents


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"settings": ["train.num_steps=5"]}, "num_steps 5 where"),
        ({"seeds": (1,)}, r"seeds \[1\] where \[0\] is recorded.*more seeds, with --reuse"),
    ],
    ids=str,
)
def test_another_configuration_is_misuse(options, difference, copied, settings):
    before = contents(copied)
    options = options | {"settings": (*settings, *options.get("settings", ()))}
    with pytest.raises(ConfigError, match=f"this configuration to be continued, .*{difference}"):
        reproduce("smoke", out=copied, on_message=[].append, **options)
    assert contents(copied) == before


def test_changed_text_is_misuse(copied, settings, corpus):
    """As in a folder of committed records: told before anything is packed."""
    shutil.rmtree(copied / "data")
    before = contents(copied)
    text = corpus.read_text(encoding="utf-8")
    try:
        corpus.write_text(text + " more", encoding="utf-8")
        with pytest.raises(ConfigError, match=r"must be unchanged .* got another corpus_hash"):
            reproduce("smoke", out=copied, settings=settings, on_message=[].append)
    finally:
        corpus.write_text(text, encoding="utf-8")
    assert contents(copied) == before


def test_other_tokens_of_the_same_text_are_misuse(copied, settings):
    record = read_json(copied / "study.json")
    record["data"]["tokenizer_hash"] = "0" * 64  # as another version of a library would give
    write_json(copied / "study.json", record)
    with pytest.raises(ConfigError, match="got another tokenizer_hash"):
        reproduce("smoke", out=copied, settings=settings, on_message=lambda line: None)


def test_impossible_wishes_leave_no_trace(settings, tmp_path):
    out = tmp_path / "out"
    for options, message in (
        ({"scale": "smok"}, "Did you mean 'smoke'"),
        ({"workers": 0}, "workers must be 1 or more, got 0"),
        ({"settings": ["data.source=/no/such/file"]}, "data source: must be a file"),
    ):
        arguments = {"scale": "smoke", "settings": settings} | options
        scale = arguments.pop("scale")
        with pytest.raises(ConfigError, match=message):
            reproduce(scale, out=out, on_message=lambda line: None, **arguments)
    assert not out.exists()
