"""The model of instruction issue: what bounds a loop decides its clocks."""

import pytest

from tools.measures.issue_model import Form, clocks_per_tile, read_loops

WAIT = "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4+{}], R9 ;\n"
ARRIVE = "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR4+{}], RZ ;\n"
FORM = Form(waits=("k", "v"), arrivals=("k", "v"), copies={"k": 0, "v": 0})


def loops(products, exponentials):
    product = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR16], R24 ;\n"
    last = product.replace(" ;", ", gsb0 ;")
    drained = "WARPGROUP.DEPBAR.LE gsb0, 0x0 ;\n"
    softmax = "".join(f"MUFU.EX2 R{100 + n}, R{n} ;\n" for n in range(exponentials))
    body = WAIT.format(0) + WAIT.format(8) + product * (products - 1) + last + drained
    body += ARRIVE.format(16) + ARRIVE.format(24) + softmax
    return read_loops(f".L_x_1:\n{body}@P0 BRA `(.L_x_1) ;\nEXIT ;\n") * 2


@pytest.mark.parametrize(
    ("work", "bound", "pipe"),
    [((40, 2), 2 * 40 * 64, "tensor"), ((1, 128), 2 * 128 * 8, "special")],
)
def test_the_busiest_pipe_bounds_a_loop(work, bound, pipe):
    counted = clocks_per_tile(loops(*work), FORM, tiles=40)
    assert bound <= counted["clocks"] + 1 <= 1.1 * bound
    assert counted[pipe] > 0.85


def test_copies_bound_a_loop():
    form = Form(waits=("k", "v"), arrivals=("k", "v"), copies={"k": 25_000, "v": 50_000})
    clocks = clocks_per_tile(loops(1, 1), form, tiles=40)["clocks"]
    assert clocks == pytest.approx(
        4000, rel=0.02
    )  # keys of two warpgroups, values once; 25 a clock
