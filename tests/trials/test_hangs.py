"""Nothing waits for ever: what is no regular file is refused, and time grows as text does."""

import itertools
import os
import random
import shutil
import socket
import time
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from children import in_child
from diffattn.errors import DiffAttnError
from diffattn.lab.cli.app import app
from diffattn.lab.data import tokenizer
from diffattn.lab.data.corpora import Document, load_corpus
from diffattn.lab.data.packing import pack
from diffattn.lab.data.tokenizer import load_tokenizer, plain_encoder, train_tokenizer
from diffattn.lab.data.tokens import PackedTokens
from diffattn.lab.evaluation.long_context.haystack import read_haystack_tokens
from diffattn.lab.evaluation.perplexity.nll_by_position import first_tokens
from diffattn.lab.inference.network_reader import NetworkReader
from diffattn.lab.training.config import DataConfig
from diffattn.lab.training.prepare import open_data, prepare_data
from hostile_folders import fault
from language_models import prose
from tally import sample, trial


def unix_socket(path):
    here = os.open(".", os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:  # its names are short
        os.chdir(path.parent)
        try:
            server.bind(path.name)
        finally:
            os.fchdir(here)
            os.close(here)


def link_to(target):
    return lambda path: path.symlink_to(target)


def linked_fifo(path):
    fifo = path.with_name(f".{path.name}.fifo")
    os.mkfifo(fifo)
    path.symlink_to(fifo)


def sparse(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS = {
    "FIFO": os.mkfifo,
    "link to a FIFO": linked_fifo,
    "socket": unix_socket,
    "endless device": link_to("/dev/zero"),
    "folder": Path.mkdir,
    "loop of links": lambda path: path.symlink_to(path.name),
    "link to nothing": link_to("nowhere"),
    "nothing": lambda path: None,
    "terabyte of zeros": sparse,
    "empty": Path.touch,
}

OF_PACKING = ("data.json", "train.bin", "train.json", "train.idx", "validation.names")
OF_TOKENIZER = ("tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json")
READERS = {
    **{
        f"packed {name}": (f"packed/{name}", lambda f: open_data(f / "packed"))
        for name in (*OF_PACKING, *OF_TOKENIZER)
    },
    "tokens": ("packed/train.bin", lambda f: PackedTokens(f / "packed", "train")),
    "tokenizer": (
        "packed/tokenizer/tokenizer.json",
        lambda f: load_tokenizer(str(f / "packed" / "tokenizer")),
    ),
    "pack command": ("a.txt", lambda f: command("pack", f / "a.txt", "--out", f / "out")),
    "train command": (
        "packed/data.json",
        lambda f: command("train", "smoke", "--data", f / "packed", "--out", f / "out"),
    ),
    "report command": ("study/study.json", lambda f: command("report", f / "study")),
    "judge command": (
        "evaluation/run.json",
        lambda f: command("judge", f / "evaluation", "--model", f / "model"),
    ),
}
"""The file that is spoiled, and who reads it."""


class Refused(DiffAttnError):
    """What a command said before it ended with status 1 or 2."""


def command(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if isinstance(done.exception, SystemExit | None) and done.exit_code in (1, 2):
        raise Refused(done.stderr.strip().removeprefix("Error: "))
    if done.exception is not None:
        raise done.exception


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts, and a packing of them."""
    root = tmp_path_factory.mktemp("hangs")
    (root / "texts").mkdir()
    for i in range(2):
        (root / "texts" / f"{i}.txt").write_text(prose(40, seed=i), encoding="utf-8")
    config = DataConfig(source=str(root / "texts"), vocab_size=300, validation_fraction=0.4)
    prepare_data(config, root / "packed")
    return root


@pytest.mark.parametrize("few", [pytest.param(False, marks=pytest.mark.scheduled), True])
def test_what_is_no_file_is_refused(data, tmp_path, few):
    cases = [
        (f"{name}, {kind}", *READERS[name], make)
        for name, (kind, make) in itertools.product(READERS, KINDS.items())
        if (name, kind) != ("report command", "nothing")  # which shows what is there
    ]
    if few:
        cases = [case for case in cases if "command" not in case[0]][::20]
    with trial(f"no regular file{sample(few)}", minimum=4 if few else 118) as tally:
        for number, (case, path, read, make) in enumerate(cases):
            folder = shutil.copytree(data, tmp_path / str(number))
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            make(target)
            tally.check(case, fault(in_child(partial(read, folder)), must_fail=True))
            shutil.rmtree(folder)


def test_folders_are_read_without_what_is_no_file(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "whole.txt").write_text("text")
    for name in ("FIFO", "link to a FIFO", "socket", "endless device", "loop of links"):
        KINDS[name](folder / f"{name}.txt")
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    read = in_child(lambda: [document.name for document in load_corpus(str(folder))])
    assert read == ("done", ["whole.txt"])


def cjk(rng, size):
    return "".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(size))


UNBROKEN = {
    "one letter": lambda rng, n: "a" * n,
    "letters": lambda rng, n: "".join(rng.choices("abcdefghij", k=n)),
    "digits": lambda rng, n: "".join(rng.choices("0123456789", k=n)),
    "spaces": lambda rng, n: " " * n,
    "spaces before a letter": lambda rng, n: " " * (n - 1) + "x",
    "tabs and spaces": lambda rng, n: " \t" * (n // 2),
    "line ends": lambda rng, n: "\n" * n,
    "mixed signs": lambda rng, n: "".join(rng.choices("!?.:;()[]{}", k=n)),
    "Chinese": cjk,
    "joined emoji": lambda rng, n: "👨‍" * (n // 2),
    "combining marks": lambda rng, n: "e" + "\u0301" * (n - 1),
    "one JSON line": lambda rng, n: '{"a":"' + "b1," * (n // 3) + '"}',
    "full stops and spaces": lambda rng, n: ". " * (n // 2),
}


def pieces_fault(text):
    """Whether training is given a word of more than the documented length, or other text."""
    from tokenizers import pre_tokenizers

    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = list(tokenizer._training_pieces(text, words))
    if "".join(pieces) != text:
        return "its pieces are another text"
    places = [place for piece in pieces for _, place in words.pre_tokenize_str(piece)]
    longest = max(end - start for start, end in places)
    most = tokenizer._MAX_WORD_CHARS
    return f"a word of {longest} characters" if longest > most else None


def test_words_of_any_length_are_cut_for_training():
    rng = random.Random(0)
    with trial("long words", minimum=50) as tally:
        for name, make in UNBROKEN.items():
            for size in (1_024, 1_025, 5_000):
                for around in ("", "some words "):
                    text = around + make(rng, size) + around
                    tally.check(f"{name}, {size}, {around!r}", pieces_fault(text))
    ordinary = ["a line of words\n" * 300, cjk(rng, 900) + "，" + cjk(rng, 900), " " * 1_000 + "x"]
    for text in ordinary:
        words = tokenizer_of().backend_tokenizer.pre_tokenizer
        assert list(tokenizer._training_pieces(text, words)) == [text]


def tokenizer_of():
    words = "the quick brown fox aaaa bbbb abab = == ===    hello .. \n\n" * 40
    text = words + "".join(chr(0x4E00 + i) * 2 for i in range(200))
    return train_tokenizer([Document(name="a", text=text)], vocab_size=400)


def seconds(call, text):
    start = time.process_time()
    call(text)
    return time.process_time() - start


class Model(NetworkReader):
    """Only its tokenizer."""

    def __init__(self):
        self.tokenizer, self.label = tokenizer_of(), "model"


def pack_text(folder, text):
    out = folder / str(random.random())
    pack([Document(name="a", text=text)], tokenizer_of(), out)


def read_haystack(folder, model, text):
    path = folder / f"{random.random()}.txt"
    path.write_text("a" + text + "b", encoding="utf-8")
    read_haystack_tokens(model, str(path), 0, len(model.encode(text)) // 2)


@pytest.mark.scheduled
def test_time_grows_as_text_does(tmp_path):
    """Four times the text may take ten times as long; sixteen times would be the square."""
    model, rng = Model(), random.Random(0)
    encoder = plain_encoder(model.tokenizer)
    calls = {
        "train": lambda text: train_tokenizer([Document(name="a", text=text)], vocab_size=600),
        "encode": partial(encoder.encode, add_special_tokens=False),
        "encode for a protocol": model.encode,
        "first tokens": lambda text: first_tokens(model, text, 5_000),
        "pack": partial(pack_text, tmp_path),
        "haystack": partial(read_haystack, tmp_path, model),
    }
    with trial("text without breaks", minimum=72) as tally:
        for name, make in UNBROKEN.items():
            small, large = make(rng, 50_000), make(rng, 200_000)
            for what, call in calls.items():
                if what == "haystack" and not small.strip():
                    continue  # no text
                before = max(0.05, min(seconds(call, small) for _ in range(2)))
                after = seconds(call, large)
                slow = f"{before:.2f} s, then {after:.2f} s" if after > 10 * before else None
                tally.check(f"{what}, {name}", slow)
