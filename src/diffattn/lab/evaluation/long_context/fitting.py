"""The number of units that fit into a context of a given length."""

from collections.abc import Callable


def most_that_fits(count: Callable[[int], int], limit: int, *, least: int, most: int) -> int | None:
    """The largest number of units whose context has at most ``limit`` tokens.

    Secant steps guess, and every second step halves the bracket, so it ends for any function;
    tokens grow almost in proportion to units, so it takes about six counts.

    Args:
        count: Units to tokens, not falling. Where tokenizers merge across units and it falls by a
            token here and there, the result still fits and the next larger one does not.
        limit: Tokens.
        least: Units that must fit.
        most: Units that exist.

    Returns:
        From ``least`` to ``most``; ``None`` if not even ``least`` fits.
    """
    low, low_count = least, count(least)
    if low_count > limit:
        return None
    first, step = low_count, 8
    while True:  # up to a number that does not fit
        if low >= most:
            return low
        high = min(most, low + step)
        high_count = count(high)
        if high_count > limit:
            break
        low, low_count = high, high_count
        per_unit = (low_count - first) / (low - least)
        # A little too far on purpose: the bracket is then narrow from above as well.
        reach = int((limit - low_count) / per_unit * 1.01) + 1 if per_unit > 0 else 0
        step = max(reach, 1) if per_unit > 0 else 2 * step
    halve = False
    while high - low > 1:
        if halve or high_count <= low_count:
            guess = (low + high) // 2
        else:
            guess = low + (limit - low_count) * (high - low) // (high_count - low_count)
        guess = min(max(guess, low + 1), high - 1)
        guess_count = count(guess)
        if guess_count <= limit:
            low, low_count = guess, guess_count
        else:
            high, high_count = guess, guess_count
        halve = not halve
    return low
