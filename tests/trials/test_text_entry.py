"""Lines may end in any way: no reader, packing or protocol sees a difference."""

import codecs
import json
import random
import re

import pytest
from typer.testing import CliRunner

from diffattn.errors import ConfigError
from diffattn.lab.cli.app import app
from diffattn.lab.data import files
from diffattn.lab.data.corpora import Document, corpus_hash, load_corpus
from diffattn.lab.data.packing import pack
from diffattn.lab.data.tokenizer import tokenizer_hash, train_tokenizer
from diffattn.lab.evaluation.icl.data import ICL_DATASETS
from diffattn.lab.evaluation.long_context.haystack import corpus_text
from diffattn.lab.evaluation.perplexity.documents import open_texts
from diffattn.lab.training.config import DataConfig
from diffattn.lab.training.prepare import prepare_data
from language_models import prose
from tally import sample, trial
from trials import commands, text_files
from trials.text_files import STYLES, documents, restyle, write_data

ODD = ("\r\n", "\n\r", "🏳️‍🌈", *"\n\r\u2028\u2029\x85\x0b\x0cé a\t")


def packed(folder):
    out = folder.parent / f"packed-{folder.name}"
    tokenizer = train_tokenizer(load_corpus(str(folder / "texts")), vocab_size=300)
    sidecars = pack(load_corpus(str(folder / "texts")), tokenizer, out)
    return [
        tokenizer_hash(tokenizer),
        *((out / f"{s}.bin").read_bytes() for s in sidecars),
        sidecars,
    ]


def prepared(folder):
    config = DataConfig(source=str(folder / "rows.jsonl"), vocab_size=300, validation_fraction=0.4)
    return prepare_data(config, folder.parent / f"prepared-{folder.name}").facts()


READERS = {
    **{name: read for name, (_, read) in text_files.READERS.items()},
    **{f"icl {name}": text_files.read_icl(name) for name in ICL_DATASETS},
    "folder": lambda f: documents(f / "texts"),
    "folder with JSON lines": lambda f: documents(f / "lines"),
    "corpus hash": lambda f: corpus_hash(load_corpus(str(f / "texts"))),
    "packed tokens": packed,
    "prepared data": prepared,
    "book": lambda f: [d.text for d in open_texts(str(f / "book.txt"), "text")],
    "haystack": lambda f: corpus_text(str(f / "texts")),
    "haystack of a book": lambda f: corpus_text(str(f / "book.txt")),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same data by style of its line ends."""
    root = tmp_path_factory.mktemp("styles")
    data = write_data(root / "written", sentences=60)
    restyle(data, root / "lf", "lf")
    (root / "lf" / "set").mkdir()
    for style in list(STYLES)[1:]:
        restyle(data, root / style, style)
        (root / style / "set").mkdir()
    for style, (_, mark) in STYLES.items():  # the library reads no byte-order mark
        rows = (root / style / "rows.jsonl").read_bytes().removeprefix(mark)
        (root / style / "set" / "rows.jsonl").write_bytes(rows.replace(b"}\r{", b"}\n{"))
    return {style: root / style for style in STYLES}


def fault_of(read, folders, style):
    """What a reader makes of a style that it does not make of plain line ends."""
    try:
        seen, expected = read(folders[style]), read(folders["lf"])
    except ConfigError as error:
        return f"refused: {error}"
    return None if seen == expected else "other text than with \\n"


def random_text(rng):
    return "".join(rng.choices(ODD, k=rng.randint(1, 40)))


def text_fault(text, mark, folder, chunk):
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
        return f"read_lines gave {list(files.read_lines(path))!r} for {text!r} in steps of {chunk}"
    (row,) = load_corpus(str(rows))
    if row.text != expected + "x":
        return f"a JSON line gave {row.text!r} for {text!r}"
    if Document(name="a", text=text).text != expected:
        return f"a document kept {text!r}"
    return None


def try_texts(tally, folder, count, monkeypatch):
    rng = random.Random(0)
    for i in range(count):
        chunk = rng.choice((1, 2, 3, 7, 1 << 20))  # a border within \r\n, or within a character
        monkeypatch.setattr(files, "_CHUNK_BYTES", chunk)
        mark = rng.choice((b"", codecs.BOM_UTF8))
        tally.check(f"text {i}", text_fault(random_text(rng), mark, folder, chunk))


FEW = ("text file", "JSON lines", "book", "SQuAD", "hallucination xsum", "lm_tasks boolq")


@pytest.mark.parametrize("few", [pytest.param(False, marks=pytest.mark.scheduled), True])
def test_line_ends_of_readers(folders, tmp_path, monkeypatch, few):
    with trial(f"line ends, readers{sample(few)}", minimum=50 if few else 600) as tally:
        for name in FEW if few else READERS:
            for style in ("crlf", "cr") if few else list(STYLES)[1:]:
                tally.check(f"{name}, {style}", fault_of(READERS[name], folders, style))
        try_texts(tally, tmp_path, 40 if few else 500, monkeypatch)


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


def generated(model_folder, prompt):
    arguments = ["generate", str(model_folder), "--prompt", prompt, "--max-new-tokens", "4"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output
