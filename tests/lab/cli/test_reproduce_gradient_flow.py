"""``diffattn reproduce gradient-flow``, as a new user calls it."""

import json


def test_a_dry_run_prints_what_is_measured(cli):
    done = cli("reproduce", "gradient-flow", "--scale", "smoke", "--seeds", "4,5", "--dry-run",
               "--set", "train.learning_rate=3e-3")  # fmt: skip
    assert (done.code, done.err) == (0, "")
    resolved = json.loads(done.out)
    assert resolved["seeds"] == [4, 5]
    assert resolved["phases"] == {"start": [1], "late": [11, 12]}
    assert resolved["config"]["train"]["learning_rate"] == 3e-3


def test_steps_that_do_not_reach_the_last_phase_are_refused(cli):
    done = cli("reproduce", "gradient-flow", "--scale", "smoke", "--set", "train.num_steps=5")
    assert (done.code, done.out) == (2, "")
    assert "the steps of phases must be at most train.num_steps=5" in done.err
