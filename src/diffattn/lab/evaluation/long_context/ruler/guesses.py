"""What copying from RULER's contexts would score, whatever was asked."""

from statistics import fmean

from diffattn.lab.evaluation.long_context.ruler.samples import (
    RulerTask,
    Sample,
    found_any,
    found_share,
)
from diffattn.lab.evaluation.metrics import GUESSES, NAMED, guess_shares
from diffattn.lab.inference.language_model import LanguageModel


def guesses(model: LanguageModel, task: RulerTask, sample: Sample, output: str) -> dict[str, float]:
    """Scores of answers that do not regard the question.

    Values are named at random. Different words of a list are named in the order in which they
    stand there: those that are asked for occur often, so they come early. Of documents a stretch
    is copied, at a place drawn at random: as long as the answer may be, and as the output is.

    Args:
        model: Whose tokens an answer has.
        task: What the sample is of.
        sample: As it is asked.
        output: What the model wrote.

    Returns:
        ``guess``, of as many strings as are asked for, and
        :data:`~diffattn.lab.evaluation.metrics.NAMED`, of as many as the output names. Nothing
        where
        all values of the context are asked for.
    """
    wanted = sample.references
    if sample.documents is not None:
        ids, written = model.encode(sample.documents), len(model.encode(output))

        def copied(size: int) -> float:
            stretches = (model.decode(ids[i : i + size]) for i in range(0, len(ids), size))
            return fmean(found_any(text, wanted) for text in stretches)

        whole = copied(task.max_new_tokens)
        if written == task.max_new_tokens:
            return {GUESSES[0]: whole, NAMED: whole}
        return {GUESSES[0]: whole, NAMED: copied(written) if written else 0.0}
    words = sample.candidates or tuple(dict.fromkeys(sample.listed or ()))
    # A word is named where the score would find it.
    named = round(found_share(output, words) * len(words))
    if sample.listed is None:
        return guess_shares(len(wanted), len(words), named)
    first, most = (found_share(" ".join(words[:count]), wanted) for count in (len(wanted), named))
    return {GUESSES[0]: first, NAMED: most}
