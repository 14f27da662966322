"""What copying from RULER's contexts would score, whatever was asked."""

from statistics import fmean

from diffattn.evaluation.long_context.ruler.samples import (
    RulerTask,
    Sample,
    found_any,
    found_share,
)
from diffattn.evaluation.metrics import GUESSES, guess_shares
from diffattn.inference.language_model import LanguageModel


def guesses(model: LanguageModel, task: RulerTask, sample: Sample) -> dict[str, float]:
    """Scores of answers that do not regard the question.

    Values are named at random. Different words of a list are named in the order in which they
    stand there: those that are asked for occur often, so they come early. Of documents a stretch
    as long as the answer may be is copied, at a place drawn at random.

    Args:
        model: Whose tokens an answer may have.
        task: What the sample is of.
        sample: As it is asked.

    Returns:
        By :data:`~diffattn.evaluation.metrics.GUESSES`, of as many strings as are asked for and of
        as many as the new tokens hold.
    """
    wanted = sample.references
    if sample.documents is not None:
        size, ids = task.max_new_tokens, model.encode(sample.documents)
        stretches = [model.decode(ids[i : i + size]) for i in range(0, len(ids), size)]
        return dict.fromkeys(GUESSES, fmean(found_any(text, wanted) for text in stretches))
    tokens_of_one = len(model.encode(f" {' '.join(wanted)}")) / len(wanted)
    fitting = int(task.max_new_tokens / tokens_of_one)
    if sample.listed is None:
        assert sample.candidates is not None
        return guess_shares(len(wanted), sample.candidates, fitting)
    words = list(dict.fromkeys(sample.listed))
    counts = (len(wanted), max(len(wanted), fitting))
    shares = (found_share(" ".join(words[:count]), wanted) for count in counts)
    return dict(zip(GUESSES, shares, strict=True))
