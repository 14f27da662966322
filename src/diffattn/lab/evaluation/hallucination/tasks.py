"""The six datasets of contextual hallucination: prompts, limits and columns."""

from dataclasses import dataclass

_LOOKBACK_STOP = ("#Document#:", "#Question#:", "#Article#:", "Q:", "\\end{code}")
_PASSAGES = (
    "Answer the question based on the given passages. Only give me the answer and do not output "
    "any other words."
)
_ARTICLE = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question "
    'cannot be answered based on the information in the article, write "unanswerable". If the '
    'question is a yes/no question, answer "yes", "no", or "unanswerable". Do not provide any '
    "explanation."
)
CONTEXT_TOKENS = 4_096
"""Context length of the paper's models, for prompt and answer of the LongBench tasks together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Prompt, limits and columns of one dataset."""

    name: str
    kind: str  # ``"summary"`` or ``"answer"``
    before: str  # prompt before the document
    after: str
    """Prompt after the document, with ``{question}`` in place of the question."""
    cue: str
    """The end of the prompt, before the answer. Lookback ratios count it as new."""
    max_new_tokens: int
    prompt_tokens: int  # most tokens of the prompt, BOS included
    cut: str
    """The part that is cut from a long document: its ``"end"``, or its ``"middle"``."""
    columns: tuple[dict[str, str], ...]
    """Layouts that are accepted, the original one first: ``document``, ``references`` (a text or a
    list of accepted answers), and for answers ``question``, to their columns in a file."""
    stop: tuple[str, ...] = ()
    hub: str | None = None
    """``NAME[:CONFIG[:SPLIT]]`` on the hub; ``None`` if it is in LongBench's archive."""

    def prompt(self, document: str, question: str) -> str:
        """The prompt for a document and a question. Braces in a document stay as they are."""
        return self.before + document + self.after.replace("{question}", question)


_ANSWER = {"document": "context", "question": "input", "references": "answers"}
_SUMMARY = {"document": "document", "references": "summary"}


def _lookback(name: str, instruction: str, title: str, columns: tuple[dict[str, str], ...],
              hub: str) -> Task:  # fmt: skip
    return Task(
        name=name, kind="summary", before=f"{instruction}\n\n#{title}#: ", after="\n#Summary#:",
        cue="\n#Summary#:", max_new_tokens=256, prompt_tokens=2_033, cut="end", columns=columns,
        stop=_LOOKBACK_STOP, hub=hub,
    )  # fmt: skip


def _long_bench(name: str, kind: str, before: str, after: str, max_new_tokens: int) -> Task:
    summary = {"document": "context", "references": "answers"}
    columns = (_ANSWER,) if kind == "answer" else (summary, _SUMMARY)
    return Task(
        name=name, kind=kind, before=before, after=after, cue=after[after.rindex("\n") :],
        max_new_tokens=max_new_tokens, prompt_tokens=CONTEXT_TOKENS - max_new_tokens, cut="middle",
        columns=columns,
    )  # fmt: skip


def _passages(name: str) -> Task:
    return _long_bench(
        name,
        "answer",
        f"{_PASSAGES}\n\nThe following are given passages.\n",
        f"\n\n{_PASSAGES}\n\nQuestion: {{question}}\nAnswer:",
        32,
    )


_ALL = (
    _lookback(
        "xsum",
        "Generate a summary comprising of 1 sentence for the given article.",
        "Article",
        (_SUMMARY,),
        "EdinburghNLP/xsum",
    ),
    _lookback(
        "cnn_dm",
        "Generate a summary based on the information in the document.",
        "Document",
        ({"document": "article", "references": "highlights"}, _SUMMARY),
        "abisee/cnn_dailymail:3.0.0",
    ),
    _long_bench(
        "multi_news",
        "summary",
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n",
        "\n\nNow, write a one-page summary of all the news.\n\nSummary:",
        512,
    ),
    _long_bench(
        "qasper",
        "answer",
        f"You are given a scientific article and a question. Answer the question {_ARTICLE}"
        "\n\nArticle: ",
        f"\n\n Answer the question based on the above article {_ARTICLE}"
        "\n\nQuestion: {question}\n\nAnswer:",
        128,
    ),
    _passages("hotpotqa"),
    _passages("2wikimqa"),
)
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
