"""The step from which a run uses its context."""

import pytest

from diffattn.lab.studies.text.count_models import phase_step


def rows_of(*losses):
    """Validation rows every 10 steps, each after a row of training."""
    rows = []
    for step, loss in zip(range(0, 1000, 10), losses, strict=False):
        parts = {"repeated_bigram": loss, "quarter_1": 0.0}
        rows += [{"step": step, "train_loss": 0.1}, {"step": step, "validation_parts": parts}]
    return rows


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ((5.0, 4.0, 1.9, 1.5, 1.0), 20),
        ((1.0, 1.0), 0),
        ((5.0, 1.9, 2.1, 1.9, 1.8), 30),  # once is luck
        ((5.0, 2.0, 2.0, 1.9), None),  # the threshold is not below itself; the last stands alone
        ((5.0, 4.0, 1.0), None),
        ((), None),
    ],
)
def test_first_of_two_evaluations_below_the_threshold(losses, step):
    assert phase_step(rows_of(*losses), 2.0) == step


def test_a_run_that_never_repeated_a_bigram_has_no_phase():
    rows = [{"step": 10 * i, "validation_parts": {"first_occurrence": 0.1}} for i in range(3)]
    assert phase_step(rows, 2.0) is None
