"""The launch tiles of five chips in Triton's interpreter, in 16 bits, against float64.

Every launch of the table that a chip can choose runs, at lengths just over one tile in each
direction: full tiles, the diagonal, the last partial tile, the masked and the unmasked loops; the
backward in the form with the fewest products and in the one whose sums have an order. A push runs
a third of them with one mask, the scheduled tier all with all masks. Shared DIFF calls the operator
as V1 does.
"""

from dataclasses import dataclass
from itertools import product

import pytest
import torch

pytest.importorskip("triton")

from chips import launched_as_on
from diffattn.lab.testing.assertions import assert_close_to_reference
from diffattn.lab.testing.inputs import OpCase
from diffattn.ops.inputs import kernel_support
from diffattn.ops.triton import configs

from .kernel_calls import decode, differential, inputs_of, softmax

pytestmark = pytest.mark.skipif(
    not configs.interpreted(), reason="on a GPU every test launches the tiles of its chip"
)

WIDTHS = (64, 96, 128)
NARROW = 32
"""Seldom used: its tiles run in the scheduled tier."""
FORMS = {"v1": (False, 2), "v2": (True, 1), "softmax": (True, 1), "v1-narrow": (False, 1),
         "v2-wide": (True, 2), "softmax-wide": (True, 2)}  # fmt: skip
"""Whether the maps share their keys, and Dv / D."""
EVERY_PUSH = ("v1", "v2", "softmax")
"""The forms of the layers; the others are shapes that the operators accept as well."""
ORDERS = {"one-kernel": False, "in-order": True}
"""Whether the backward adds in order: by name, the two forms of one call."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launches:
    """The launches of one form and width on a chip, for both orders of the backward's sums."""

    form: str
    head_dim: int
    forward: tuple[tuple[str, int, int], ...]
    """Each launch with its queries and keys per tile."""
    one_kernel: tuple[tuple[str, int, int], ...]
    in_order: tuple[tuple[str, int, int], ...]

    def of(self, order):
        return self.forward + (self.in_order if ORDERS[order] else self.one_kernel)

    @property
    def orders(self):
        """Both, or the one where the table has nothing that adds in any order."""
        return [x for x in ORDERS if ORDERS[x] or self.one_kernel != self.in_order]

    def longest(self, order):
        """The most queries and the most keys in a tile of any launch."""
        _, queries, keys = zip(*self.of(order), strict=True)
        return max(queries), max(keys)


def shapes(form, head_dim):
    """Two or more query heads on one key/value head, λ per token and head."""
    shared_keys, ratio = FORMS[form]
    return {"num_heads": 2, "num_kv_heads": 1, "batch": 1, "lam_axes": "bth", "head_dim": head_dim,
            "value_dim": ratio * head_dim, "shared_keys": shared_keys}  # fmt: skip


def launches_of(form, head_dim, chip):
    """What the table says; ``test_the_tiles_launched_are_those_of_the_chip`` sees what runs."""
    is_softmax = form.startswith("softmax")
    shared_keys, ratio = FORMS[form]
    row = configs.capability_row(*divmod(chip, 10))

    def row_of(launch):
        launch = "softmax_" + launch if is_softmax else launch
        shared = shared_keys and not is_softmax
        return configs.seed(launch, head_dim, ratio * head_dim, row, shared)

    def tiles(forms, in_order=False):
        chosen = configs.choose(forms, row_of, in_order)
        return tuple((name, x.block_m, x.block_n) for name, x in chosen.items())

    return Launches(
        form=form,
        head_dim=head_dim,
        forward=tiles(configs.FORWARD_FORMS),
        one_kernel=tiles(configs.BACKWARD_FORMS),
        in_order=tiles(configs.BACKWARD_FORMS, in_order=True),
    )


def chips_by_launches():
    """All distinct launches with the chips that make them."""
    chips = {}
    for head_dims in (WIDTHS, (NARROW,)):
        for form, head_dim, chip in product(FORMS, head_dims, configs.CAPABILITIES):
            chips.setdefault(launches_of(form, head_dim, chip), []).append(chip)
    return chips


LAUNCHES = chips_by_launches()


def lengths_and_masks(m, n):
    """Options by name for tiles of at most ``m`` queries and ``n`` keys."""
    over = max(m, n) + 1
    return {
        "causal": {"num_queries": over},
        "T<S": {"num_queries": m + 1, "num_keys": m + n // 2 + 4},
        "T>S": {"num_queries": n + m // 2 + 4, "num_keys": n + 1},
        "cross": {"num_queries": m + 1, "num_keys": n + 3, "causal": False},
        "window": {"num_queries": over, "num_keys": over + 5, "window": n // 2 + 1},
        "packed": {"num_queries": over, "documents": (1, over // 2, 0, over - over // 2 - 1)},
        "padded": {"num_queries": over, "batch": 2, "padding": ((n // 2 + 1, 0), (0, 5))},
        "kv_lengths": {"num_queries": m // 2 + 1, "num_keys": over, "batch": 2,
                       "kv_lengths": (over, over - n // 2)},
    }  # fmt: skip


MASKS = tuple(lengths_and_masks(64, 64))


def every_case():
    """Each launch with each mask in bfloat16, and with one mask in float16, in both orders.

    Launches take turns with the masks.
    """
    for i, launches in enumerate(LAUNCHES):
        for k, order in enumerate(launches.orders):
            turn = (i + 3 * k) % len(MASKS)
            pushed = launches.form in EVERY_PUSH and launches.head_dim in WIDTHS
            half = (i + k) % 4 == 0  # one of four is in float16
            for j, mask in enumerate(MASKS):
                yield launches, mask, torch.bfloat16, order, pushed and j == turn and not half
            yield launches, MASKS[turn], torch.float16, order, pushed and half


def named(launches, mask, dtype, order, is_pushed):
    chips = "+".join(f"sm_{chip}" for chip in LAUNCHES[launches])
    kind = "bf16" if dtype == torch.bfloat16 else "fp16"
    name = f"{launches.form}-d{launches.head_dim}-{chips}-{mask}-{kind}-{order}"
    marks = () if is_pushed else pytest.mark.scheduled
    return pytest.param(launches, mask, dtype, order, id=name, marks=marks)


@pytest.fixture
def adds(monkeypatch):
    """Choose the order of sums by name; the tests of this folder otherwise ask for one order.

    What fills unwritten memory with NaN stays on, which asking torch for any order would end.
    """
    return lambda order: monkeypatch.setattr(configs, "adds_in_order", lambda q: ORDERS[order])


@pytest.mark.sampled(one_of=8)
@pytest.mark.parametrize(
    ("launches", "mask", "dtype", "order"), [named(*case) for case in every_case()]
)
def test_real_tiles(launches, mask, dtype, order, adds):
    """Output and every gradient stay within twice the error that rounding alone causes."""
    adds(order)
    op = softmax if launches.form.startswith("softmax") else differential
    options = lengths_and_masks(*launches.longest(order))[mask]
    case = OpCase(name=mask, **(shapes(launches.form, launches.head_dim) | options))
    with launched_as_on(LAUNCHES[launches][0]):
        assert_close_to_reference(op, inputs_of(op, case, dtype=dtype), backend="triton")


def tiles_of(launches):
    """Queries and keys per tile of every launch that has tiles of both."""
    options = [made.options for made in launches if made.options.get("BLOCK_N")]
    return [(each["BLOCK_M"], each["BLOCK_N"]) for each in options]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("form", ["v1", "softmax"])
@pytest.mark.parametrize("chip", configs.CAPABILITIES)
def test_the_tiles_launched_are_those_of_the_chip(chip, form, order, adds, launches):
    adds(order)
    op = softmax if form == "softmax" else differential
    case = OpCase(name="", num_queries=2, **shapes(form, 128))
    inputs = inputs_of(op, case, dtype=torch.bfloat16)
    with launched_as_on(chip):
        op(*inputs.tensors().values(), backend="triton").sum().backward()
    assert tiles_of(launches) == [
        tuple(tile) for _, *tile in launches_of(form, 128, chip).of(order)
    ]


@pytest.mark.parametrize(("chip", "head_dim"), [(86, 96), (120, 128)])
def test_padded_rows_have_tiles_of_their_own_where_registers_are_short(
    chip, head_dim, adds, launches
):
    adds("one-kernel")
    options = lengths_and_masks(32, 64)["padded"]
    case = OpCase(name="padded", **(shapes("v1", head_dim) | options))
    with launched_as_on(chip):
        inputs = inputs_of(differential, case, dtype=torch.bfloat16)
        assert_close_to_reference(differential, inputs, backend="triton")
    assert tiles_of(launches)[-1] == (32, 16)


DECODE_MASKS = {
    "causal": {},
    "noncausal": {"causal": False},
    "window": {"window": 70},
    "padded": {"batch": 2, "padding": ((71, 0), (0, 300))},
    "kv_lengths": {"batch": 2, "kv_lengths": (300, 140)},
}


def decode_cases():
    """Each number of queries, width and form with each mask."""
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    counts = (1, 5, kernel_support.MAX_DECODE_QUERIES)
    for i, (num_queries, head_dim, form) in enumerate(product(counts, WIDTHS, ("v1", "v2"))):
        for j, mask in enumerate(DECODE_MASKS):
            kind = "fp16" if (i + j) % 4 == 0 else "bf16"
            name = f"{form}-d{head_dim}-T{num_queries}-{mask}-{kind}"
            arguments = (num_queries, head_dim, form, mask, kinds[kind])
            yield pytest.param(*arguments, id=name)


@pytest.mark.scheduled
@pytest.mark.parametrize(("num_queries", "head_dim", "form", "mask", "dtype"), list(decode_cases()))
def test_real_tiles_of_decode(num_queries, head_dim, form, mask, dtype):
    """Its tiles are those of a GPU as they are: from one block of 16 rows to two of 64 or 128.

    Two parts of the keys, each of several tiles and no whole number of them.
    """
    options = {"num_queries": num_queries, "num_keys": 300, "num_heads": 5}
    case = OpCase(name=mask, **(shapes(form, head_dim) | options | DECODE_MASKS[mask]))
    inputs = inputs_of(decode, case, dtype=dtype)
    assert_close_to_reference(decode, inputs, backend="triton_decode", gradients=False)
