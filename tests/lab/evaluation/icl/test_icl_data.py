"""The data sets are read from their original files, and wrong files are told in one line."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.icl.data import load_icl_data


def test_trec_has_coarse_and_fine_labels_in_words(files):
    coarse, fine = (load_icl_data(name, str(files)) for name in ("trec", "trec_fine"))
    assert coarse.labels == (
        "abbreviation", "description", "entity", "human", "location", "numeric",
    )  # fmt: skip
    assert {"entity creation", "human individual", "human group", "numeric size",
            "abbreviation expansion", "location other"} <= set(fine.labels)  # fmt: skip
    assert [one.text for one in coarse.train] == [one.text for one in fine.train]
    assert coarse.train[0].text.endswith("café ?")


def test_no_test_text_is_a_demonstration(files):
    """Whatever its case, marks and label: as a demonstration it would hold the answer."""
    folder = files / "own"
    folder.mkdir()
    train = [("What is gas ?", "a"), ("Who is he?", "a"), ("Who was he?", "b"), ("?!", "b")]
    test = [("what is GAS?", "b"), ("?", "a"), ("Who was she?", "b")]
    for name, rows in (("train", train), ("test", test)):
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    data = load_icl_data("trec", str(folder))
    assert [one.text for one in data.train] == ["Who is he?", "Who was he?", "?!"]
    assert len(data.test) == 3
    (folder / "test.jsonl").write_text(
        "\n".join(json.dumps({"text": text, "label": "a"}) for text, label in train if label == "a")
    )
    with pytest.raises(ConfigError, match="a train text that is no test text, got none of 'a'"):
        load_icl_data("trec", str(folder))


def test_banking_and_clinic_labels_have_spaces_and_texts_one_line(files):
    banking = load_icl_data("banking77", str(files))
    assert banking.labels == ("card arrival", "change pin?", "gas", "gas type")
    assert all(one.text.endswith(", please?") for one in banking.train)
    assert len(banking.test) == 8
    assert load_icl_data("banking77", str(files / "banking77")) == banking  # the folder itself
    assert load_icl_data("clinic150", str(files)).labels == banking.labels
    with_oos = load_icl_data("clinic151", str(files))
    assert set(with_oos.labels) - set(banking.labels) == {"oos"}
    assert (len(with_oos.train), len(with_oos.test)) == (25, 9)


@pytest.mark.parametrize(
    ("name", "path", "text", "message"),
    [
        ("trec", "trec/TREC_10.label", None, "with train_5500.label, TREC_10.label"),
        ("trec", "trec/TREC_10.label", "NUM:date\n", "TREC_10.label:1: text and label must not"),
        ("trec", "trec/TREC_10.label", "When was it?\n", "like 'NUM:date', got 'When'"),
        ("trec", "trec/TREC_10.label", "", "test must hold one example or more"),
        ("trec_fine", "trec/TREC_10.label", "NUM:new Why ?", "got none of 'numeric n"),
        ("banking77", "banking77/test.csv", "text,label\na,b\n", "columns must be text and cat"),
        ("clinic150", "clinc150/data_full.json", "[", "must be JSON"),
        ("clinic150", "clinc150/data_full.json", '{"train": ["a"]}', r"train\[0\]: must be a text"),
    ],
)
def test_wrong_files(name, path, text, message, files):
    if text is None:
        (files / path).unlink()
    else:
        (files / path).write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_icl_data(name, str(files))


def test_a_missing_folder(tmp_path):
    with pytest.raises(ConfigError, match="must be 'hub', 'generated' or a folder with data_full"):
        load_icl_data("clinic150", str(tmp_path / "nowhere"))


class Rows(list):
    """Rows of a hub data set with one column of class numbers."""

    def __init__(self, column, names, rows):
        super().__init__({"text": text, column: names.index(label)} for text, label in rows)
        self.column_names = ["text", column]
        self.features = {column: SimpleNamespace(names=names)}


def test_the_hub_gives_the_same(monkeypatch):
    asked = []

    def load(repository, config, split):
        asked.append((repository, config, split))
        if repository == "CogComp/trec":
            return Rows("fine_label", ["NUM:date", "HUM:ind"], [(f"When, {split} ?", "NUM:date")])
        names = ["gas_type", "oos"]
        return Rows("intent", names, [(f"fuel {split}", "gas_type"), (f"sing {split}", "oos")])

    module = ModuleType("datasets")
    module.load_dataset = load
    monkeypatch.setitem(sys.modules, "datasets", module)
    assert load_icl_data("trec_fine", "hub").labels == ("numeric date",)
    assert load_icl_data("clinic150", "hub").labels == ("gas type",)
    assert load_icl_data("clinic151", "hub").labels == ("gas type", "oos")
    assert asked[2] == ("clinc/clinc_oos", "plus", "train")
    with pytest.raises(ConfigError, match="columns must be text and label"):
        load_icl_data("banking77", "hub")

    def fail(*args, **kwargs):
        raise OSError("no connection.\nmore")

    monkeypatch.setattr(module, "load_dataset", fail)
    with pytest.raises(ConfigError, match=r"holds train.csv, .* got: no connection\."):
        load_icl_data("banking77", "hub")


def test_columns_of_any_name(tmp_path):
    folder = tmp_path / "banking77"
    folder.mkdir()
    for name, asked in (("train", "who is  it"), ("test", "who was it")):
        line = json.dumps({"question": asked, "intent": "a_b"})
        (folder / f"{name}.jsonl").write_text(f"{line}\n\n")
    columns = {"text": "question", "label": "intent"}
    data = load_icl_data("banking77", str(tmp_path), columns)
    assert [(one.text, one.label) for one in data.train] == [("who is it", "a b")]
    with pytest.raises(ConfigError, match=r"train.jsonl:1: must have the column 'text'"):
        load_icl_data("trec", str(folder))
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text(f"question,intent\nwho {name},me\n")
    assert load_icl_data("banking77", str(tmp_path), columns).train[0].label == "me"
