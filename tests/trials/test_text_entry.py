"""Lines may end in any way: neither readers of text nor prompts see a difference."""

import codecs
import json
import random
import re

import pytest

from diffattn.lab.data import files
from diffattn.lab.data.corpora import Document, load_corpus
from language_models import prose
from tally import sample, trial
from trials import commands

ODD = ("\r\n", "\n\r", "🏳️‍🌈", *"\n\r\u2028\u2029\x85\x0b\x0cé a\t")


def text_fault(text, mark, folder):
    """What a text file, its lines and a JSON line come to, against the definition."""
    expected = re.sub("\r\n|\r", "\n", text)
    path, rows = folder / "a.txt", folder / "a.jsonl"
    path.write_bytes(mark + text.encode())
    rows.write_bytes(mark + json.dumps({"text": text + "x"}).encode() + b"\r\n")
    seen = files.read_text(path)
    if seen != expected:
        return f"read_text gave {seen!r} for {text!r}"
    lines = expected.removesuffix("\n").split("\n") if expected else []
    if list(files.read_lines(path)) != lines:
        return f"read_lines gave {list(files.read_lines(path))!r} for {text!r}"
    (row,) = load_corpus(str(rows))
    if row.text != expected + "x":
        return f"a JSON line gave {row.text!r} for {text!r}"
    if Document(name="a", text=text).text != expected:
        return f"a document kept {text!r}"
    return None


@pytest.mark.parametrize("count", [pytest.param(500, marks=pytest.mark.scheduled), 40])
def test_line_ends_of_texts(tmp_path, count):
    rng = random.Random(0)
    with trial(f"line ends, texts{sample(count < 500)}", minimum=count) as tally:
        for i in range(count):
            mark = rng.choice((b"", codecs.BOM_UTF8))
            text = "".join(rng.choices(ODD, k=rng.randint(1, 40)))
            tally.check(f"text {i}", text_fault(text, mark, tmp_path))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return commands.model_folder(tmp_path_factory.mktemp("models") / "diff", "diff")


@pytest.mark.scheduled
def test_line_ends_of_prompts(model_folder):
    with trial("line ends, prompts", minimum=20) as tally:
        for i in range(10):
            prompt = prose(3, seed=i).replace(". ", ".\n")
            wanted = generated(model_folder, prompt)
            for end in ("\r\n", "\r"):
                same = generated(model_folder, prompt.replace("\n", end)) == wanted
                tally.check(f"prompt {i}, {end!r}", None if same else "another continuation")


def generated(folder, prompt):
    called = commands.run_line("generate", folder, "--prompt", prompt, "--max-new-tokens", "4")
    assert called.code == 0, called
    return called.out
