"""Packed data that is damaged in any file is refused by name, and the advice helps."""

import json
import random
import re
import shutil

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.data.tokens import PackedTokens, TokenDataset
from diffattn.lab.training.config import DataConfig
from diffattn.lab.training.prepare import open_data, prepare_data
from language_models import prose
from tally import sample, trial
from trials import disk

ADVICE = re.compile(r"Delete the packed files in (\S+) \(data\.json, tokenizer/, train\.\*, vali")


def pack_prose(root, files, sentences, *, seed=0, vocab_size=300):
    (root / "texts").mkdir()
    for i in range(files):
        text = prose(sentences, seed=seed + i)
        (root / "texts" / f"{i}.txt").write_text(text, encoding="utf-8")
    source = str(root / "texts")
    config = DataConfig(source=source, vocab_size=vocab_size, validation_fraction=0.3)
    return config, prepare_data(config, root / f"packed-{seed}")


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Settings and folder of packed data."""
    return pack_prose(tmp_path_factory.mktemp("damaged"), 12, 12)


def damages(content, flips):
    """Names of damages, and what is left of a file."""
    at = next(i for i in range(len(content) // 2, len(content)) if content[i] != content[i - 2])
    swapped = bytearray(content)
    swapped[at - 2], swapped[at] = content[at], content[at - 2]
    yield from disk.damages(content, random.Random(0), flips)
    yield from {
        "missing": None,
        "longer": content + b"\0\0",
        "zeros": bytes(len(content)),
        "other order": bytes(swapped),
    }.items()


def same_record(path, before):
    of_tokenizer = path.parent.name == "tokenizer" and path.name != "manifest.json"
    if of_tokenizer or path.suffix != ".json" or not path.is_file():
        return path.is_file() and path.read_bytes() == before
    try:
        return json.loads(path.read_bytes()) == json.loads(before)
    except ValueError:
        return False


def damage_fault(name, left, packed, folder, heal):
    """Why a damage was not refused by name, or why the advice did not help."""
    config, data = packed
    shutil.copytree(data.folder, folder)
    before = (folder / name).read_bytes()
    (folder / name).unlink()
    if left is not None:
        (folder / name).write_bytes(left)
    if same_record(folder / name, before):
        return None  # white space between the values of a record says nothing
    try:
        opened = open_data(folder)
    except CheckpointError as error:
        message = str(error)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    else:
        same = all((getattr(opened, s).tokens == getattr(data, s).tokens).all() for s in SPLITS)
        return f"was accepted, with {'the same' if same else 'other'} tokens"
    if name not in message or "\n" in message:
        return f"said {message!r}"
    if ADVICE.search(message) is None and "Pack the corpus first" not in message:
        return f"gave no advice: {message!r}"
    if not heal:
        return None
    try:
        again = prepare_data(config, folder)  # the same command, at once
    except CheckpointError as error:
        if re.search("Delete the packed files|Choose another", str(error)) is None:
            return f"gave no advice the second time: {error}"
        for path in [folder / "data.json", *folder.glob("train.*"), *folder.glob("validation.*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        again = prepare_data(config, folder)
    return None if again.facts() == data.facts() else "other tokens after what was advised"


SPLITS = ("train", "validation")


@pytest.mark.parametrize("few", [pytest.param(False, marks=pytest.mark.scheduled), True])
def test_damaged_packings_are_refused(packed, tmp_path, few):
    files = {name: content for name, content in disk.held(packed[1].folder).items() if content}
    assert len(files) >= 7
    flips = 3 if few else 40
    cases = [(n, what, left) for n, x in files.items() for what, left in damages(x, flips)]
    with trial(f"damaged packings{sample(few)}", minimum=13 if few else 300) as tally:
        for number, (name, what, left) in enumerate(cases[:: 5 if few else 1]):
            folder = tmp_path / str(number)
            fault = damage_fault(name, left, packed, folder, heal=not few)
            tally.check(f"{name}, {what}", fault)
            shutil.rmtree(folder)


def test_unverified_tokens_are_those_of_the_file(packed, tmp_path):
    _, data = packed
    folder = shutil.copytree(data.folder, tmp_path / "packed")
    tokens = bytearray((folder / "train.bin").read_bytes())
    tokens[7] ^= 1
    (folder / "train.bin").write_bytes(tokens)
    with pytest.raises(CheckpointError, match=r"train\.bin: must be as it was packed"):
        PackedTokens(folder, "train")
    assert (PackedTokens(folder, "train", verify=False).tokens != data.train.tokens).sum() == 1
    assert len(TokenDataset(open_data(folder, verify=False).train, 8)) > 1


@pytest.mark.parametrize("of", ["train.json", "tokenizer"])
def test_files_of_two_packings_are_told_apart(packed, tmp_path, of):
    config, data = packed
    folder = shutil.copytree(data.folder, tmp_path / "packed")
    other = pack_prose(tmp_path, 3, 30, seed=90, vocab_size=290)[1].folder
    if of == "tokenizer":
        shutil.copytree(other / "tokenizer", folder / "tokenizer", dirs_exist_ok=True)
        expected = r"all files must be of one packing, got another tokenizer_hash"
    else:
        for name in ("train.bin", "train.idx", "train.names", "train.json"):
            shutil.copy(other / name, folder / name)
        expected = r"all files must be of one packing, got another corpus_hash in train\.json"
    with pytest.raises(CheckpointError, match=expected):
        open_data(folder)
    assert prepare_data(config, data.folder).facts() == data.facts()
