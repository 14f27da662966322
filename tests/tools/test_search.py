"""The search for the fastest option, with times that are given."""

import multiprocessing
import os
import time
from functools import partial

import pytest

from tools.search import Checkers, best, search


def tried(samples, refused=()):
    reasons = dict(refused)
    options = dict.fromkeys([*samples, *reasons])
    return search(
        {name: name for name in options},
        check=lambda options: {name: reasons.get(name) for name in options},
        time=lambda right, _: {name: samples[name] for name in right},
        why=lambda option, error: str(error),
    )


def test_the_fastest_right_one_is_chosen_and_the_others_say_why_not():
    results = tried({"a": [3.0, 3.0], "b": [2.0, 2.0]}, {"c": "out of registers"})
    assert best(results, "a") == best(results, "c") == best(results, None) == "b"
    assert results["c"].refused == "out of registers"
    assert results["c"].seconds is None
    assert results["b"].seconds.median == 2.0
    assert list(results) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("other", "winner"), [([2.0, 2.0, 2.0], "seed"), ([1.95, 1.95, 1.95], "seed"),
                          ([1.8, 1.8, 1.8], "other")],
)  # fmt: skip
def test_what_rounds_differ_by_is_a_tie_and_the_seed_stays(other, winner):
    results = tried({"other": other, "seed": [1.8, 2.0, 2.2]})
    assert results["seed"].seconds.low == pytest.approx(1.9)
    assert best(results, "seed") == winner


def test_what_fails_while_it_is_timed_is_refused_and_the_others_are_timed():
    def time(right, on_failure):
        on_failure("b", TypeError("no tile"))
        return {name: [1.0] for name in right if name != "b"}

    results = search(
        {"a": 1, "b": 2}, check=dict.fromkeys, time=time,
        why=lambda option, error: f"{option}: {error}",
    )  # fmt: skip
    assert results["b"].refused == "2: no tile"
    assert results["b"].seconds is None
    assert best(results, "b") == "a"


def by_name(option):
    """A check, in a process of its own; what a compiler may do to it stands in the option."""
    if option == "abort":
        assert multiprocessing.parent_process() is not None, "it would end the tests themselves"
        os._exit(3)
    if option == "raise":
        raise TypeError("no tile")
    if option == "hang":
        time.sleep(600)
    return None if option == "right" else f"{option} in {os.getpid()}"


def elsewhere(pid, option):
    """A device that takes one process."""
    if os.getpid() != pid:
        raise RuntimeError("busy")
    return by_name(option)


@pytest.fixture
def checkers():
    made = Checkers(by_name, num=2, seconds=120)
    yield made
    made.close()


@pytest.mark.scheduled
def test_checks_side_by_side_end_what_they_refuse_alone(checkers):
    options = {"a": "abort", "b": "right", "c": "wrong", "d": "right"}
    results = checkers(options)
    assert set(results) == set(options)
    assert results["a"] == "its check ended the process, exit status 3"
    assert results["b"] is results["d"] is None
    wrong, _, process = results["c"].rpartition(" ")
    assert wrong == "wrong in"
    assert int(process) != os.getpid()
    kept = {worker.process.pid for worker in checkers.idle}
    assert 1 <= len(kept) <= 2
    again = checkers({"e": "wrong"})["e"]
    assert int(again.rpartition(" ")[2]) in kept  # no process is started for one that waits
    for worker in checkers.idle:
        worker.process.kill()
        worker.process.join()
    assert checkers._waiting() is None
    assert not checkers.idle


@pytest.mark.scheduled
def test_a_process_is_replaced_after_an_error_or_when_it_hangs(checkers):
    assert checkers({"a": "raise", "b": "right"}) == {"a": "TypeError: no tile", "b": None}
    checkers.seconds = 20
    results = checkers({"a": "hang", "b": "right", "c": "raise", "d": "right"})
    assert results == {
        "a": "not checked within 20 s", "b": None, "c": "TypeError: no tile", "d": None,
    }  # fmt: skip


@pytest.mark.scheduled
def test_where_no_process_is_of_use_this_one_checks(checkers):
    checkers.check = partial(elsewhere, os.getpid())
    assert checkers({"a": "right", "b": "wrong"}) == {"a": None, "b": f"wrong in {os.getpid()}"}
    assert checkers.num == 0


def test_without_processes_this_one_checks_and_an_error_ends_it():
    alone = Checkers(by_name, num=0, seconds=60)
    assert alone({"a": "right", "b": "wrong"}) == {"a": None, "b": f"wrong in {os.getpid()}"}
    with pytest.raises(TypeError):
        alone({"a": "raise"})
