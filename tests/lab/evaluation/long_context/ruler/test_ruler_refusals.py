"""RULER: what cannot run is refused before the first item, in one clear line."""

import json

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.ruler.ruler import TASKS, Ruler


def refused(protocol, model, message):
    with pytest.raises(ConfigError, match=message) as caught:
        protocol.batches(model)
    assert "\n" not in str(caught.value)


def test_a_length_too_short_names_the_least(long_model, haystack):
    protocol = Ruler(lengths=(300,), tasks=("niah_single_1", "vt"), haystack=haystack)
    with pytest.raises(ConfigError, match=r"too short; with this tokenizer these tasks") as caught:
        protocol.batches(long_model)
    least = {name: int(str(caught.value).split(f"{name} ")[1].split(",")[0].split(".")[0])
             for name in ("niah_single_1", "vt")}  # fmt: skip
    enough = Ruler(lengths=(max(least.values()),), tasks=tuple(least), haystack=haystack, samples=4)
    assert enough.batches(long_model)
    assert min(least.values()) > 300


@pytest.mark.parametrize("parameter", ["squad", "hotpotqa"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "file or folder must exist"),
        ("{", "must be JSON"),
        ("{}", "must be a (SQuAD|HotpotQA) file"),
        ("[1, 2]", "must be a (SQuAD|HotpotQA) file"),
        ('{"data": []}', "must (hold SQuAD questions|be a HotpotQA file)"),
        ("[]", "must (be a SQuAD file|hold HotpotQA questions)"),
        ('[{"question": 1, "answer": 2, "context": []}]', "must be"),
    ],
)
def test_missing_and_malformed_question_files(
    parameter, content, message, long_model, tmp_path, haystack
):
    path = tmp_path / "questions.json"
    if content is not None:
        path.write_text(content)
    task = {"squad": "qa_1", "hotpotqa": "qa_2"}[parameter]
    protocol = Ruler(tasks=(task,), haystack=haystack, samples=1, **{parameter: str(path)})
    refused(protocol, long_model, rf"questions.json: .*{message}")


def test_too_few_questions_documents_or_words(long_model, haystack, tmp_path):
    asked = [{"question": "Q?", "answers": [{"text": "A"}]}] * 3
    squad = {"data": [{"paragraphs": [{"context": "A.", "qas": asked}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    many = Ruler(tasks=("qa_1",), samples=1000, squad=str(tmp_path / "squad.json"))
    refused(many, long_model, r"file of qa_1 must hold samples=1000 questions, got 3\. Set fewer")
    (tmp_path / "one.json").write_text(
        json.dumps([{"question": "Q?", "answer": "A", "context": [["T", ["A."]]]}])
    )
    single = Ruler(tasks=("qa_2",), samples=1, lengths=(4096,), hotpotqa=str(tmp_path / "one.json"))
    refused(single, long_model, r"must fill a context of 4096 tokens, got only 1 documents")
    words = tmp_path / "words.txt"
    words.write_text("\n".join(f"word{i}" for i in range(80)))
    few = Ruler(tasks=("cwe",), samples=1, lengths=(4096,), word_list=str(words))
    assert few.batches(long_model)  # 80 words repeated 3 to 30 times fill it
    longer = Ruler(tasks=("cwe",), samples=1, lengths=(3500,), word_list=str(words))
    refused(longer, long_model, r"must fill a context of 3500 tokens, got only 60 words")
    words = tmp_path / "phrases.txt"
    words.write_text("one\ntwo words\n")
    refused(Ruler(tasks=("cwe",), samples=1, word_list=str(words)), long_model, "one word per line")
    keyed = Ruler(tasks=("niah_single_1",), samples=1, haystack=haystack, key_list=str(words))
    refused(keyed, long_model, r"ruler: key_list: .*phrases\.txt: must hold one word per line")


def test_chat_uses_the_template(long_model, haystack, monkeypatch):
    protocol = Ruler(tasks=("niah_single_1",), samples=1, chat=True, haystack=haystack)
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    monkeypatch.setattr(long_model.tokenizer, "chat_template", template, raising=False)
    sample, _ = protocol._fit(long_model, TASKS["niah_single_1"], 2048, 0, protocol._material(2048))
    text = protocol.prompt(long_model, sample.question, sample.answer_prefix)
    assert text.startswith("[user]A special magic number")
    assert text.endswith("provided text?[assistant]" + sample.answer_prefix.strip())
    assert protocol.batches(long_model)
