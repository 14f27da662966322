"""Language models small enough to evaluate in a test, and texts to read."""

import csv
import json
import random

import pytest

from language_models import build, build_windowed, model, models, text, tokenizer

__all__ = ["build", "build_windowed", "corpus", "haystack", "model", "models", "text", "tokenizer"]


_WORDS = [
    "the", "city", "number", "special", "magic", "question", "answer", "people", "house", "river",
    "old", "morning",
]  # fmt: skip
COARSE = {"ABBR": ("abb", "exp"), "ENTY": ("animal", "cremat"), "DESC": ("def", "manner"),
          "HUM": ("ind", "gr"), "LOC": ("city", "other"), "NUM": ("date", "volsize")}  # fmt: skip
INTENTS = ("gas", "gas_type", "card_arrival", "change_pin?")


def sentence(generator):
    return " ".join(generator.choices(_WORDS, k=generator.randint(2, 5)))


def write_trec(folder, train=60, test=12, seed=0):
    """TREC in Latin-1; ``ABBR`` has two training questions only."""
    generator = random.Random(seed)
    folder.mkdir(parents=True)
    codes = [f"{coarse}:{fine}" for coarse, kinds in COARSE.items() for fine in kinds]
    for name, count in (("train_5500.label", train), ("TREC_10.label", test)):
        usual = codes[2:] if name.startswith("train") else codes
        chosen = [*codes[:2], *(usual[i % len(usual)] for i in range(count - 2))]
        lines = [f"{code} {sentence(generator)} caf\xe9 ?" for code in chosen]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="latin-1")


def write_banking(folder, train=24, test=8, seed=0):
    generator = random.Random(seed)
    folder.mkdir(parents=True)
    for name, count in (("train.csv", train), ("test.csv", test)):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "category"])
            for i in range(count):
                rows.writerow([f"{sentence(generator)},\nplease?\n", INTENTS[i % len(INTENTS)]])


def write_clinic(folder, train=24, test=8, seed=0):
    generator = random.Random(seed)
    folder.mkdir(parents=True)
    value = {
        part: [[sentence(generator), INTENTS[i % len(INTENTS)]] for i in range(count)]
        for part, count in (("train", train), ("test", test))
    }
    value |= {f"oos_{part}": [[sentence(generator), "oos"]] for part in ("train", "test")}
    (folder / "data_full.json").write_text(json.dumps(value), encoding="utf-8")


def write_all(root):
    write_trec(root / "trec")
    write_banking(root / "banking77")
    write_clinic(root / "clinc150")
    return root


@pytest.fixture(scope="session")
def haystack(tmp_path_factory, text):
    """A file to hide things in."""
    path = tmp_path_factory.mktemp("haystack") / "book.txt"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, text):
    """A folder of three long texts."""
    folder = tmp_path_factory.mktemp("corpus")
    for i in range(3):
        (folder / f"{i}.txt").write_text(text[i * 3000 :], encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def long_model(build):
    """A model that takes long texts."""
    return build("diff", max_length=8192)


@pytest.fixture(scope="session")
def sentences(text):
    """``sentences(first, count)``: so many of the text, from number ``first`` on."""
    return lambda first, count: ". ".join(text.split(". ")[first : first + count])


@pytest.fixture
def files(tmp_path):
    """Small copies of the classification data sets."""
    return write_all(tmp_path / "icl")
