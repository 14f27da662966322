"""RULER's questions about documents, from local files of SQuAD and HotpotQA."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.data import files
from diffattn.lab.evaluation.long_context.ruler.samples import (
    Material,
    Question,
    QuestionFile,
    RulerTask,
    Sample,
)

_INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any other words."
)
_QUESTION = (
    f"{_INSTRUCTION}\n\nThe following are given documents.\n\n{{context}}\n\n{_INSTRUCTION}\n\n"
    "Question: {query}"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionTask(RulerTask):
    """A question about documents, one or several of which hold the answer (section 3.4)."""

    max_new_tokens: int = 32
    match: str = "part"

    def units(self, material: Material, index: int, length: int) -> tuple[int, int]:
        file = material.questions[self.name]
        return len(file.questions[index].required), len(file.documents)

    def build(self, units: int, length: int, index: int, seed: str, material: Material) -> Sample:
        file = material.questions[self.name]
        question = file.questions[index]
        near, taken = list(question.near), {*question.required, *question.near}
        others = [i for i in range(len(file.documents)) if i not in taken]
        Random(f"{seed}-near").shuffle(near)
        Random(f"{seed}-others").shuffle(others)
        chosen = [*question.required, *near, *others][:units]
        Random(f"{seed}-order").shuffle(chosen)
        context = "\n\n".join(
            f"Document {n}:\n{file.documents[i]}" for n, i in enumerate(chosen, start=1)
        )
        return Sample(
            question=_QUESTION.format(context=context, query=question.text),
            answer_prefix=" Answer:",
            references=question.answers,
            answer=question.answers[0],
            documents=context,
            notes={"query": question.text, "documents": len(chosen)},
        )


@lru_cache(maxsize=4)
def read_questions(path: str, kind: str) -> QuestionFile:
    """Read a file in its original JSON format: ``"SQuAD"`` 1.1 or 2.0, answerable questions, or
    ``"HotpotQA"``, distractor setting."""
    read, form = _FORMATS[kind]
    text = files.require_text(Path(path))
    try:
        value = files.parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{path}: must be JSON, got: {error}.") from error
    try:
        documents, questions = read(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else "values of other types"
        raise ConfigError(f"{path}: must be a {kind} file ({form}), got {reason}.") from error
    for question in questions:
        texts = (question.text, *question.answers)
        if not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(f"{path}: questions and answers must be text, got {texts[:2]!r}.")
    if not questions:
        raise ConfigError(f"{path}: must hold {kind} questions with answers, got none.")
    return QuestionFile(path, documents, questions)


def _squad(value: Any) -> tuple[tuple[str, ...], tuple[Question, ...]]:
    articles = [
        [
            (p["context"], [q for q in p["qas"] if not q.get("is_impossible", False)])
            for p in a["paragraphs"]
        ]
        for a in value["data"]
    ]
    documents = tuple(sorted({text for article in articles for text, _ in article}))
    number = {text: i for i, text in enumerate(documents)}
    return documents, tuple(
        Question(
            entry["question"],
            tuple(dict.fromkeys(answer["text"] for answer in entry["answers"])),
            (number[text],),
            tuple(sorted({number[other] for other, _ in article} - {number[text]})),
        )
        for article in articles
        for text, asked in article
        for entry in asked
        if entry["answers"]
    )


def _hotpotqa(value: Any) -> tuple[tuple[str, ...], tuple[Question, ...]]:
    if isinstance(value, Mapping):
        raise TypeError
    entries = [
        (entry["question"], entry["answer"], [f"{t}\n{''.join(p)}" for t, p in entry["context"]])
        for entry in value
    ]
    documents = tuple(sorted({text for *_, texts in entries for text in texts}))
    number = {text: i for i, text in enumerate(documents)}
    return documents, tuple(
        Question(question, (answer,), tuple(dict.fromkeys(number[text] for text in texts)), ())
        for question, answer, texts in entries
    )


_FORMATS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "SQuAD": (_squad, "data, paragraphs, context, qas, question, answers"),
    "HotpotQA": (_hotpotqa, "a list of question, answer, context"),
}
