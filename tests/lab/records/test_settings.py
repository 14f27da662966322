"""Values of ``--set`` are taken as their parameter declares them, or refused by name."""

from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.protocol import parts
from diffattn.lab.records.fields import read_settings


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A field of every declared type."""

    count: int = 1
    limit: int | None = None
    share: float = 0.5
    chat: bool = False
    text: str = "a"
    file: str | None = None
    lengths: tuple[int, ...] = (1,)
    depths: tuple[float, ...] | None = None
    tasks: tuple[tuple[int, int], ...] = ((1, 1),)
    inner: dict[str, Any] | None = None
    pair: tuple[int, int] = (1, 1)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "3", 3),
        ("limit", "null", None),
        ("share", "1", 1.0),
        ("text", "2024", "2024"),
        ("file", "null", None),
        ("lengths", "[1, 2]", (1, 2)),
        ("depths", "[0, 0.5]", (0, 0.5)),
        ("tasks", "[[4, 2], [1, 1]]", ((4, 2), (1, 1))),
        ("inner", '{"bits": [4, 8]}', {"bits": [4, 8]}),
    ],
)
def test_values_are_read_by_their_declared_type(name, text, value):
    (read,) = read_settings([f"{name}={text}"], get_type_hints(Settings)).values()
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("count", "three", "--set: count must be a whole number, got 'three'."),
        ("limit", "None", "a whole number, got 'None'. Did you mean null?"),
        ("share", "NaN", "share must be finite, got NaN."),
        ("chat", "False", "chat must be true or false, got 'False'. Did you mean false?"),
        ("lengths", "512", "lengths must be a list, got 512."),
        ("lengths", '["512"]', "lengths[0] must be a whole number, got '512'."),
        ("pair", "[1]", "pair must be a list of 2, got [1]."),
    ],
)
def test_wrong_types_are_refused_by_name(name, text, message):
    with pytest.raises(ConfigError) as refusal:
        read_settings([f"{name}={text}"], get_type_hints(Settings))
    assert message in str(refusal.value)


def test_columns_are_names_to_names():
    columns = 'lm_tasks.columns={"goal": "aim", "boolq.answer": "label"}'
    (part,) = parts(["lm_tasks"], ["lm_tasks.data=folder", columns])
    assert part.protocol.columns == {"goal": "aim", "boolq.answer": "label"}
    with pytest.raises(ConfigError, match=r"columns must be in .* got 'gaol'\. Did you mean 'go"):
        parts(["lm_tasks"], ["lm_tasks.data=folder", 'lm_tasks.columns={"gaol": "aim"}'])
    with pytest.raises(ConfigError, match=r"columns\.text must be text, got 1"):
        parts(["many_shot"], ['many_shot.columns={"text": 1}'])
    with pytest.raises(ConfigError, match="columns must be an object"):
        parts(["hallucination"], ["hallucination.columns=text"])
