"""How BABILong's questions are put, and which outputs are right."""

import re
from collections.abc import Sequence

_EXAMPLES = {
    "qa1": (
        ("Alan went to the balcony. Judith moved to the cellar. Alan travelled to the attic.",
         "Where is Alan?", "attic"),
        ("Judith went to the shop. Charlie journeyed to the balcony.",
         "Where is Judith?", "shop"),
    ),
    "qa2": (
        ("Charlie went to the cellar. Charlie took the bottle. Charlie moved to the attic.",
         "Where is the bottle?", "attic"),
        ("Alan moved to the shop. Alan got the lamp. Alan dropped the lamp. "
         "Alan went to the balcony.", "Where is the lamp?", "shop"),
    ),
    "qa3": (
        ("Judith went to the attic. Judith took the lamp. Judith moved to the shop. "
         "Judith journeyed to the cellar.", "Where was the lamp before the cellar?", "shop"),
        ("Alan went to the balcony. Alan got the bottle. Alan went to the attic. "
         "Alan left the bottle.", "Where was the bottle before the attic?", "balcony"),
    ),
    "qa4": (
        ("The attic is north of the shop. The cellar is east of the shop.",
         "What is north of the shop?", "attic"),
        ("The balcony is west of the attic. The attic is south of the cellar.",
         "What is the attic south of?", "cellar"),
    ),
    "qa5": (
        ("Alan took the lamp. Alan gave the lamp to Judith. Charlie went to the attic.",
         "Who received the lamp?", "Judith"),
        ("Charlie got the bottle. Charlie handed the bottle to Alan. Alan went to the shop.",
         "What did Charlie give to Alan?", "bottle"),
    ),
}  # fmt: skip
"""Names, places and objects of none of the stories."""
_INSTRUCTION = (
    "Some facts are hidden among sentences that have nothing to do with them. Answer the question "
    "from the facts alone, with one word. Where facts differ, the later one holds."
)


def question_text(task: str, context: str, question: str) -> str:
    """Instruction, worked examples, context and question of a task.

    Args:
        task: ``"qa1"`` to ``"qa5"``.
        context: Facts, with or without other sentences around them.
        question: Ends with a question mark.
    """
    examples = "\n\n".join(
        f"<example>\n{facts}\nQuestion: {asked}\nAnswer: {answer}\n</example>"
        for facts, asked, answer in _EXAMPLES[task]
    )
    return f"{_INSTRUCTION}\n\n{examples}\n\n<context>\n{context}\n</context>\nQuestion: {question}"


def is_right(output: str, answer: str, question: str, labels: Sequence[str]) -> float:
    """1 if the first sentence of the output names the answer and no other label, else 0.

    Labels that the question names are never answers and do not count.

    Source: arXiv:2406.10149; booydar/babilong, metrics.py.

    Args:
        output: What the model wrote.
        answer: One of the labels.
        question: The question.
        labels: Possible answers of the task.
    """
    first = _SENTENCE_END.split(output.strip().lower(), maxsplit=1)[0]
    named = {label for label in map(str.lower, labels) if _has_word(first, label)}
    named -= {label for label in map(str.lower, labels) if _has_word(question.lower(), label)}
    return float(named == {answer.lower()})


_SENTENCE_END = re.compile(r"[.\n]|<context>|<example>|question")


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None
