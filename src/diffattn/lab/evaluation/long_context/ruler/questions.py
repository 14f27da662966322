"""RULER's questions over documents, from local files of SQuAD and HotpotQA."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.data import files
from diffattn.lab.evaluation.long_context.ruler.samples import (
    Material,
    Question,
    QuestionFile,
    RulerTask,
    Sample,
    Streams,
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
    """A question over documents, one of which (or several) hold the answer.

    Source: RULER, arXiv:2404.06654, section 3.4.
    """

    max_new_tokens: int = 32
    match: str = "part"

    def least(self, material: Material, index: int) -> int:
        """See :meth:`RulerTask.least`."""
        return len(material.questions[self.name].questions[index].required)

    def most(self, material: Material, index: int, length: int) -> int:
        """See :meth:`RulerTask.most`."""
        return len(material.questions[self.name].documents)

    def build(
        self, units: int, length: int, index: int, streams: Streams, material: Material
    ) -> Sample:
        """See :meth:`RulerTask.build`."""
        text, documents, answers = material.questions[self.name].ask(index, units, streams)
        context = "\n\n".join(
            f"Document {i}:\n{document}" for i, document in enumerate(documents, start=1)
        )
        return Sample(
            question=_QUESTION.format(context=context, query=text),
            answer_prefix=" Answer:",
            references=tuple(answers),
            answer=answers[0],
            documents=context,
            notes={"query": text, "documents": len(documents)},
        )


@lru_cache(maxsize=2)
def read_squad(path: str) -> QuestionFile:
    """Answerable questions of a SQuAD file (1.1 or 2.0) in its original JSON format.

    Raises:
        ConfigError: The file is missing, not JSON, or of another format.
    """
    value = _json(path)
    try:
        articles = [
            [
                (p["context"], [q for q in p["qas"] if not q.get("is_impossible", False)])
                for p in a["paragraphs"]
            ]
            for a in value["data"]
        ]
        documents = tuple(sorted({text for article in articles for text, _ in article}))
        number = {text: i for i, text in enumerate(documents)}
        questions = tuple(
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
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: must be a SQuAD file (data, paragraphs, context, qas, question, answers), "
            f"got {_reason(error)}."
        ) from error
    return _checked(QuestionFile(path, documents, questions), "SQuAD")


@lru_cache(maxsize=2)
def read_hotpotqa(path: str) -> QuestionFile:
    """Questions of a HotpotQA file (distractor setting) in its original JSON format.

    Raises:
        ConfigError: The file is missing, not JSON, or of another format.
    """
    value = _json(path)
    try:
        if isinstance(value, Mapping):
            raise TypeError
        entries = [
            (
                entry["question"],
                entry["answer"],
                [f"{t}\n{''.join(p)}" for t, p in entry["context"]],
            )
            for entry in value
        ]
        documents = tuple(sorted({text for *_, texts in entries for text in texts}))
        number = {text: i for i, text in enumerate(documents)}
        questions = tuple(
            Question(question, (answer,), tuple(dict.fromkeys(number[text] for text in texts)), ())
            for question, answer, texts in entries
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path}: must be a HotpotQA file (a list of question, answer, context), "
            f"got {_reason(error)}."
        ) from error
    return _checked(QuestionFile(path, documents, questions), "HotpotQA")


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else "values of other types"


def _checked(file: QuestionFile, kind: str) -> QuestionFile:
    """Raise unless there are questions, all of them text with an answer."""
    for question in file.questions:
        texts = (question.text, *question.answers)
        if not all(isinstance(text, str) and text for text in texts):
            raise ConfigError(
                f"{file.path}: questions and answers must be text, got {texts[:2]!r}."
            )
    if not file.questions:
        raise ConfigError(f"{file.path}: must hold {kind} questions with answers, got none.")
    return file


def _json(path: str) -> Any:
    files.require_path(Path(path))
    text = files.read_text(Path(path))
    try:
        return files.parse_json(text if text is not None else "")
    except ValueError as error:
        raise ConfigError(f"{path}: must be JSON, got: {error}.") from error
