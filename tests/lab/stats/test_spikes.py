"""Spikes, clipping and divergence of made-up runs whose answer is known."""

import math

import numpy as np
import pytest

from diffattn.lab.stats.spikes import WINDOW, rate_sensitivity, spike_steps, stability

NOISE = np.random.default_rng(0).normal(0, 0.05, 200)


def measured(losses=None, norms=None, **changes):
    losses = 3 + NOISE if losses is None else losses
    norms = np.full(len(losses), 0.5) if norms is None else norms
    settings = {"num_steps": 200, "vocab_size": 512, "max_gradient_norm": 1.0}
    return stability(list(losses), list(norms), **settings | {"validation_loss": 3.0} | changes)


def test_a_step_that_sticks_out_is_one_noise_and_a_falling_loss_are_none():
    assert not spike_steps(NOISE, 0.0).any()
    assert not spike_steps(6 - np.linspace(0, 3, 200) + NOISE, 0.1).any()
    losses = 3 + NOISE
    losses[[100, 101, 150]] += 1
    assert np.flatnonzero(spike_steps(losses, 0.1)).tolist() == [100, 101, 150]


@pytest.mark.parametrize(("rise", "count"), [(0.099, 0), (0.101, 1)])
def test_without_noise_the_least_rise_decides(rise, count):
    losses = np.full(60, 2.0)
    losses[50] += rise
    assert spike_steps(losses, 0.1).sum() == count


def test_a_fall_is_no_spike_and_a_lasting_rise_becomes_the_new_level():
    losses = np.full(200, 2.0)
    losses[60:] = 1.0
    assert not spike_steps(losses, 0.1).any()
    losses[120:] = 3.0
    # Once half of the window is new, so is its median.
    assert np.flatnonzero(spike_steps(losses, 0.1)).tolist() == list(range(120, 120 + WINDOW // 2))


def test_a_stable_run():
    run = measured()
    assert (run.diverged, run.diverged_step, run.loss) == (False, None, 3.0)
    assert (run.loss_spike_share, run.gradient_spike_share, run.clipped_share) == (0, 0, 0)
    assert run.median_gradient_norm == 0.5


def test_gradient_spikes_are_factors_and_clipping_is_counted():
    norms = np.full(200, 0.5)
    norms[[60, 70]] = 0.9, 1.1
    run = measured(norms=norms)
    assert run.gradient_spike_share == 1 / (200 - WINDOW)
    assert run.clipped_share == 1 / 200
    assert measured(norms=norms, max_gradient_norm=0.0).clipped_share == 0
    assert run.loss_spike_share == 0


def test_a_diverged_run_counts_as_the_worst_from_there_on():
    run = measured(losses=3 + NOISE[:150], validation_loss=None)
    assert (run.diverged, run.diverged_step, run.loss) == (True, 150, math.log(512))
    assert run.loss_spike_share == run.gradient_spike_share == 50 / (200 - WINDOW)
    assert run.clipped_share == 50 / 200
    early = measured(losses=[3.0], validation_loss=None)
    assert (early.loss_spike_share, early.clipped_share) == (1.0, 199 / 200)
    assert early.median_gradient_norm is None
    # As has a run that knows no more than a guess.
    run = measured(validation_loss=7.0)
    assert (run.diverged, run.diverged_step, run.loss) == (True, None, math.log(512))


def test_sensitivity_is_the_mean_loss_above_the_best():
    assert rate_sensitivity([3.0, 3.5, 4.0]) == pytest.approx(0.5)
    assert rate_sensitivity([3.0]) == 0
