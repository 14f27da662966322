"""Counts of products, copies and reloads, on code short enough to count by hand."""

import pytest

from tools.machine_code import LoopCounts, count_loops, count_reloads

MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %r1, %r2 }, { %r3 }, { %r4 }, { %r5 };"
WGMMA = "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 { %r1 }, %rd1, %rd2, %p1, 1, 1, 0, 1;"
SPIN = """{
	waitLoop:
	mbarrier.try_wait.parity.shared.b64 complete, [%r1], %r2;
	@!complete bra.uni waitLoop;
}"""


def loop(name, *lines):
    body = "\n".join(f"\t{line}" for line in lines)
    return f"$L__{name}:    // header\n{body}\n\t@%p1 bra \t$L__{name};"


def test_products_of_a_loop_are_those_of_all_its_warps():
    ptx = f"{MMA}\n{loop('BB0_1', MMA, MMA)}\n{MMA}\nret;"
    (counts,) = count_loops(ptx, 8)
    assert counts == LoopCounts(products=2 * 16 * 8 * 16 * 8, copies=0)


def test_four_warps_share_a_warpgroup_product():
    (counts,) = count_loops(loop("BB0_1", WGMMA), 8)
    assert counts.products == 64 * 32 * 16 * 2


@pytest.mark.parametrize(("shape", "rows", "columns"), [(68158608, 64, 64), (69272720, 64, 128)])
def test_one_thread_issues_a_product_in_tensor_memory(shape, rows, columns):
    operands = f"[ %r1 + 0 ], %rd1, %rd2, {shape}, %p1;"
    by_register = f"mov.b32 \t%r7, {shape};\n" + loop(
        "BB0_1", f"@%p2 tcgen05.mma.cta_group::1.kind::f16 {operands.replace(str(shape), '%r7')}"
    )
    at_once = loop("BB0_1", f"@%p2 tcgen05.mma.cta_group::1.kind::f16 {operands}")
    in_tensor_memory = at_once.replace("%rd1, %rd2", "[ %r2 + 8 ], %rd2")
    for ptx in (by_register, at_once, in_tensor_memory):
        (counts,) = count_loops(ptx, 8)
        assert counts.products == rows * columns * 16


def test_the_innermost_loops_that_multiply_are_counted_and_waits_are_none():
    inner = [loop("BB0_2", MMA, SPIN), loop("BB0_3", MMA, MMA, "bar.sync 0;")]
    outer = loop("BB0_1", "add.s32 %r2, %r2, 1;", *inner, loop("BB0_4", "add.s32 %r1, %r1, 1;"))
    first, second = count_loops(outer, 1)
    assert (first.products, second.products) == (16 * 8 * 16, 2 * 16 * 8 * 16)


def test_a_loop_entered_by_a_jump_has_parts_out_of_line():
    ptx = f"""
	bra.uni 	$L__BB0_2;
$L__BB0_1:
	{MMA}
	@%p1 bra 	$L__BB0_2;
	bra.uni 	$L__BB0_3;
$L__BB0_2:
	{MMA}
	@%p2 bra 	$L__BB0_1;
	bra.uni 	$L__BB0_1;
$L__BB0_3:
	ret;"""
    (counts,) = count_loops(ptx, 1)
    assert counts.products == 2 * 16 * 8 * 16


def test_copies_are_stores_of_what_the_loop_has_loaded_wide():
    load = "ld.global.v4.b32 { %r10, %r11, %r12, %r13 }, [ %rd5 + 0 ];"
    move = "mov.b32 %r20, %r10;"
    store = "st.shared.v4.b32 [ %r30 + 0 ], { %r20, %r11, %r12, %r13 };"
    narrow = "ld.global.b32 { %r40 }, [ %rd6 + 0 ];"
    row = "st.shared.b32 [ %r31 + 0 ], { %r40 };"
    weights = "st.shared.v2.b32 [ %r32 + 0 ], { %r1, %r2 };"
    (counts,) = count_loops(loop("BB0_1", load, MMA, narrow, row, move, store, weights), 4)
    assert counts.copies == 1
    (counts,) = count_loops(loop("BB0_1", store, MMA, move, load), 4)  # stored a turn later
    assert counts.copies == 1
    asynchronous = "cp.async.cg.shared.global [ %r30 + 0 ], [ %rd5 + 0 ], 0x10;"
    (counts,) = count_loops(f"{load}\n{store}\n" + loop("BB0_1", MMA, asynchronous), 4)
    assert counts.copies == 0


SASS = """
.text.kernel:
        /*0000*/                   LDL R1, [R1] ;
.L_x_1:
        /*0010*/                   LDL.64 R4, [R1+0x8] ;
.L_x_2:
        /*0020*/                   {product} ;
        /*0030*/                   LDL R6, [R1+0x10] ;
        /*0040*/              @!P0 BRA `(.L_x_2) ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/                   EXIT ;
.L_x_3:
        /*0070*/                   BRA `(.L_x_3);
"""


@pytest.mark.parametrize(
    "product",
    ["HMMA.16816.F32.BF16 R8, R4, R2, R8", "HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4], R24",
     "UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4], tmem[UR6], idesc[UR7], UP0"],
)  # fmt: skip
def test_reloads_count_inside_the_loop_that_multiplies_alone(product):
    assert count_reloads(SASS.format(product=product)) == 1


def test_code_without_products_has_no_loops_to_judge():
    assert count_reloads(SASS.format(product="FADD R1, R2, R3")) == 0
    assert count_loops(loop("BB0_1", "add.s32 %r1, %r1, 1;"), 4) == []
