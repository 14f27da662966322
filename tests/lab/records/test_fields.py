"""What a file holds is what its annotations say, or the first fault is named by its place."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.records.fields import AtLeast, Probability, checked


@dataclass(frozen=True, kw_only=True)
class Part:
    name: str
    value: float | None = None
    more: dict[str, Any] = field(default_factory=dict)


class Whole(TypedDict):
    parts: list[Part]
    count: Annotated[int, AtLeast(1)]
    names: NotRequired[Annotated[list[str], AtLeast(1)]]
    mode: NotRequired[Literal["a", "b"]]
    size: NotRequired[int | str]
    p: NotRequired[Probability | None]


GOOD = {"parts": [{"name": "x", "value": 1}, {"name": "y"}], "count": 2, "extra": [{"a": None}]}


def test_dataclasses_are_made_and_other_fields_kept():
    made = checked(Whole, GOOD, "file")
    assert made["parts"] == [Part(name="x", value=1), Part(name="y")]
    assert made["extra"] == [{"a": None}]
    for p in (0, 0.5, 1, None):
        assert checked(Whole, GOOD | {"p": p}, "f")["p"] == p
    assert checked(Whole, GOOD | {"size": "b", "mode": "a", "names": ["x"]}, "f")["size"] == "b"


def nested(depth):
    return [] if depth == 0 else [nested(depth - 1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": None}, r"file: parts must be a list, got None\.$"),
        ({"parts": [{}]}, r"file: parts\[0\] must hold name, got \[\]\.$"),
        ({"parts": [{"name": "x", "nam": 1}]}, r"parts\[0\] must hold .* got 'nam' too"),
        ({"parts": [{"name": 1}]}, r"file: parts\[0\]\.name must be text, got 1\.$"),
        ({"parts": [{"name": "x", "value": "1"}]}, r"value must be a number, got '1'"),
        ({"parts": [{"name": "x", "value": True}]}, r"value must be a number, got True"),
        ({"parts": [{"name": "x", "value": float("nan")}]}, r"must be finite.* got nan"),
        ({"parts": [{"name": "x", "more": {"a b": [1e306]}}]}, r"more\.'a b'\[0\] must be finite"),
        ({"count": 10**400}, r"count must be finite.*got 1000+\.\.\.0+"),
        ({"count": 0}, r"count must be at least 1, got 0"),
        ({"count": 1.0}, r"count must be a whole number, got 1\.0"),
        ({"names": []}, r"names must be at least 1 entries, got 0"),
        ({"p": 2**63}, r"p must be at most 1, got 9223372036854775808"),
        ({"p": -0.1}, r"p must be at least 0, got -0\.1"),
        ({"mode": "c"}, r"mode must be 'a' or 'b', got 'c'"),
        ({"size": [1]}, r"size must be a whole number or text, got \[1\]"),
        ({"extra": nested(100)}, r"must be nested at most 64 deep"),
        ({"extra": float("inf")}, r"extra must be finite"),
        ({"x" * 999: float("inf")}, r"^file: '?x{10,40}\.\.\.x{10,40}'? must be finite"),
        ({"\n": "", "count": None}, r"^file: count must be a whole number, got None\.$"),
    ],
)
def test_the_first_fault_is_named_by_its_place(change, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        checked(Whole, GOOD | change, "file")
    assert len(str(caught.value)) < 1_000
    assert "\n" not in str(caught.value)


def test_a_whole_that_is_no_object():
    with pytest.raises(CheckpointError, match=r"^file: must be an object, got \[\]\.$"):
        checked(Whole, [], "file")
