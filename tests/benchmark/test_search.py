"""The search for the fastest option, with times that are given."""

import pytest

from diffattn.benchmark.search import best, search


def tried(samples, refused=()):
    reasons = dict(refused)
    options = dict.fromkeys([*samples, *reasons])
    return search(
        {name: name for name in options},
        check=reasons.get,
        time=lambda right, _: {name: samples[name] for name in right},
        why=lambda option, error: str(error),
    )


def test_the_fastest_right_one_is_chosen_and_the_others_say_why_not():
    found = tried({"a": [3.0, 3.0], "b": [2.0, 2.0]}, {"c": "out of registers"})
    assert best(found, "a") == "b"
    assert found["c"].refused == "out of registers"
    assert found["c"].seconds is None
    assert found["b"].seconds.median == 2.0
    assert list(found) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("other", "winner"), [([2.0, 2.0, 2.0], "seed"), ([1.95, 1.95, 1.95], "seed"),
                          ([1.8, 1.8, 1.8], "other")],
)  # fmt: skip
def test_what_rounds_differ_by_is_a_tie_and_the_seed_stays(other, winner):
    found = tried({"other": other, "seed": [1.8, 2.0, 2.2]})
    assert found["seed"].seconds.low == pytest.approx(1.9)
    assert best(found, "seed") == winner


def test_a_refused_seed_or_none_at_all():
    found = tried({"a": [3.0], "b": [2.0]}, {"seed": "wrong"})
    assert best(found, "seed") == best(found, None) == "b"


def test_nothing_is_timed_where_everything_is_refused():
    def never(right):
        raise AssertionError

    found = search({"a": 1}, check=lambda _: "no", time=never, why=never)
    assert best(found, "a") is None


def test_what_fails_while_it_is_timed_is_refused_and_the_others_are_timed():
    def time(right, on_failure):
        on_failure("b", TypeError("no tile"))
        return {name: [1.0] for name in right if name != "b"}

    found = search(
        {"a": 1, "b": 2}, check=lambda _: None, time=time,
        why=lambda option, error: f"{option}: {error}",
    )  # fmt: skip
    assert found["b"].refused == "2: no tile"
    assert found["b"].seconds is None
    assert best(found, "b") == "a"


def test_another_error_ends_the_search():
    def broken(option):
        raise ValueError(option)

    with pytest.raises(ValueError, match="a"):
        search({"a": "a"}, check=broken, time=dict, why=broken)
