"""Small files in the original formats of the classification data sets."""

import csv
import json
import random

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
