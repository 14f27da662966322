"""Scores of an output against references."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from diffattn.errors import ConfigError

ROUGE = ("rouge1", "rouge2", "rougeL")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and extra spaces.

    Source: the evaluation script of SQuAD 1.1, arXiv:1606.05250.
    """
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def span_match(output: str, references: Sequence[str]) -> float:
    """1 if a reference stands in the output, both normalised, else 0.

    A reference that normalises to nothing matches only an output that does.

    Source: arXiv:2407.07071, ``eval_exact_match.py``.
    """
    written = normalise(output)
    for reference in map(normalise, references):
        if reference in written if reference else not written:
            return 1.0
    return 0.0


def word_f1(output: str, references: Sequence[str]) -> float:
    """Best F1 of the normalised words over the references.

    Source: the evaluation script of SQuAD 1.1, arXiv:1606.05250.
    """
    words = normalise(output).split()
    return max(_f1(words, normalise(reference).split()) for reference in references)


def rouge(output: str, references: Sequence[str]) -> dict[str, float]:
    """F-measures of ROUGE-1, ROUGE-2 and ROUGE-L with stemming, best over the references.

    Source: C.-Y. Lin, ROUGE (2004), by the package ``rouge_score``.
    """
    scorer = rouge_scorer()
    scores = [scorer.score(reference, output) for reference in references]
    return {name: float(max(score[name].fmeasure for score in scores)) for name in ROUGE}


@cache
def rouge_scorer() -> Any:
    """The scorer of ``rouge_score``; a ConfigError if that is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise ConfigError(
            "hallucination: rouge needs the package 'rouge_score', got none installed. "
            "Run: pip install 'diffattn[eval]', or set hallucination.rouge=false."
        ) from error
    return RougeScorer(list(ROUGE), use_stemmer=True)


def _f1(output: Sequence[str], reference: Sequence[str]) -> float:
    if not output or not reference:
        return float(output == reference)
    common = sum((Counter(output) & Counter(reference)).values())
    return 2 * common / (len(output) + len(reference))
