"""The compile cases: every kernel of the package as it is launched, for chips that are not here."""

from dataclasses import dataclass, field, replace
from typing import Any

import triton
from triton.experimental.gluon import language as gl

from diffattn.ops.hopper import backward as hopper_backward
from diffattn.ops.hopper import backward_launches, by_map
from diffattn.ops.hopper import forward as hopper
from diffattn.ops.triton import backward, decode, forward
from diffattn.ops.triton.configs import GRADIENTS, SMALL_SHARED, LaunchConfig, capability_row, seed
from tools.counted_work import PRODUCTS
from tools.machine_code import max_spill_bytes

_POINTERS = {
    "*fp32": ("p_lam", "p_lse", "p_delta", "p_dlam", "p_dq_sum", "p_acc", "p_max", "p_sum"),
    "*i32": ("p_first", "p_last", "p_begin", "p_end", "p_before", "p_lengths", "p_table"),
    "*u8": ("p_padding",),
}
"""The element types of pointers other than those to the inputs' dtype."""
_FORMS = {False: ("v1-narrow", "v1"), True: ("v2", "v2-wide")}
"""Forms of differential attention, by whether both maps read the same keys and whether Dv = 2 D."""
_SOFTMAX_FORMS = ("softmax", "softmax-wide")


@dataclass(frozen=True, kw_only=True, slots=True)
class AotCase:
    """One kernel with its types and tile sizes, to be compiled for a chip that is not here."""

    name: str
    kernel: Any
    """A ``triton.jit`` or ``gluon.jit`` function."""
    signature: dict[str, str]
    """Type per run-time argument: ``"*bf16"``, ``"i32"``; ``":16"`` says divisible by 16."""
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int
    max_spill_bytes: int = 64
    """Bytes per thread that the assembler may store to local memory for want of registers."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further compiler options, for example ``maxnreg``."""
    tile_products: int = 0
    """Multiply-adds that one turn of the loop over tiles needs; 0: not known."""
    loop_warps: int | None = None
    """Warps that run a loop together. Default: ``num_warps``."""


def aot_cases(capability: int) -> list[AotCase]:
    """Every kernel of the package at its seeds, in bfloat16 under a causal mask.

    Both operators at the widths 64 and 128, differential attention as V1 (Dv = 2 D) and as V2
    (shared keys, Dv = D); the masked forms at one width. Decode at its smallest and largest block
    of rows. The Hopper kernels on their chip only. ``capability`` is ten times the compute
    capability.
    """
    cases = [
        aot_case(launch, head_dim, value_dim, capability)
        for head_dim in (64, 128)
        for op in ("diff_attention", "softmax_attention")
        for launch in kernels(op)
        for value_dim in ((2 * head_dim, head_dim) if op == "diff_attention" else (head_dim,))
    ]
    for launch in ("fwd", "bwd", "dkv", "dq"):
        cases += [
            aot_case(launch, 64, 128, capability, RANGES=True, CAUSAL=False),
            aot_case(launch, 64, 128, capability, PADDING=True),
        ]
    cases.append(aot_case("fwd", 64, 128, capability, INFERENCE=True))
    tiled = [case for case in cases if case is not None]
    return tiled + _decode_cases(capability) + (_hopper_cases() if capability == 90 else [])


def kernels(op: str) -> dict[str, Any]:
    """The kernels of an operator by the name of the launch; all of ``GRADIENTS`` are one kernel."""
    by_keys = backward._diff_attention_bwd_dkv_kernel
    launches = {
        "fwd": forward._diff_attention_fwd_kernel,
        "fwd_by_map": forward._diff_attention_fwd_kernel,
        "preprocess": backward._diff_attention_bwd_preprocess_kernel,
        **dict.fromkeys(("bwd", "dkv", "dk", "dv"), by_keys),
        "dq": backward._diff_attention_bwd_dq_kernel,
    }
    if op == "softmax_attention":
        names = ("fwd", "preprocess", "bwd", "dkv", "dq")
        return {f"softmax_{name}": launches[name] for name in names}
    return launches


def aot_case(
    launch: str,
    head_dim: int,
    value_dim: int,
    capability: int,
    *,
    shared_keys: bool | None = None,
    **flags: bool,
) -> AotCase | None:
    """One launch as the compiler sees it; ``None`` if the table has no row for it.

    Args:
        launch: Name of a launch; see :func:`kernels`.
        head_dim, value_dim, capability: D, Dv, and ten times the compute capability.
        shared_keys: Whether both maps read the same keys. Default: if Dv equals D, as in V2.
        flags: Compile-time switches other than those of a plain causal call.
    """
    is_softmax = launch.startswith("softmax_")
    kernel = kernels("softmax_attention" if is_softmax else "diff_attention")[launch]
    if shared_keys is None:
        shared_keys = is_softmax or value_dim == head_dim
    row = capability_row(*divmod(capability, 10))
    padding = flags.get("PADDING", False)
    config = seed(launch, head_dim, value_dim, row, shared_keys, padding)
    if config is None:
        return None
    given = _constants(launch, head_dim, value_dim, shared_keys, config, flags)
    constexprs = {name: given[name] for name in kernel.arg_names if name in given}
    forms = _SOFTMAX_FORMS if is_softmax else _FORMS[shared_keys]
    form = forms[value_dim > head_dim]
    per_d, per_dv = PRODUCTS.get(launch, (0, 0))
    width = per_d * given["BLOCK_D"] + per_dv * given["BLOCK_DV"]
    loops = 2 if launch == "fwd_by_map" else 1
    options = "".join(f"-{name.lower()}" for name, value in flags.items() if value)
    return AotCase(
        name=f"{form}-d{head_dim}-{launch.removeprefix('softmax_')}{options}", kernel=kernel,
        signature=_signature(kernel, constexprs), constexprs=constexprs,
        num_warps=config.num_warps, num_stages=config.num_stages,
        max_spill_bytes=max_spill_bytes(launch, capability),
        tile_products=config.block_m * config.block_n * width // loops,
    )  # fmt: skip


def _constants(
    launch: str,
    head_dim: int,
    value_dim: int,
    shared_keys: bool,
    config: LaunchConfig,
    flags: dict[str, bool],
) -> dict[str, Any]:
    is_softmax = launch.startswith("softmax_")
    gradients = GRADIENTS.get(launch.removeprefix("softmax_"), ())
    given: dict[str, Any] = {
        "HEAD_DIM": head_dim,
        "VALUE_DIM": value_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "BLOCK_DV": triton.next_power_of_2(value_dim),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "NUM_MAPS": 1 if is_softmax else 2,
        "SHARED_KEYS": shared_keys,
        "CAUSAL": True,
        "MAP_BY_MAP": launch == "fwd_by_map",
        "splits": 1,
        **dict.fromkeys(("RANGES", "PADDING", "INFERENCE"), False),
        **{f"WITH_{name}": name in gradients for name in ("DK", "DV", "DQ")},
        **flags,
    }
    if given["PADDING"]:
        given |= {"RANGES": True, "CAUSAL": False}  # padding comes with intervals
    if "DQ" not in gradients:
        given["p_dq_sum"] = None
    if is_softmax:
        given["p_lam"] = None
    if not given["RANGES"]:
        given |= dict.fromkeys(("p_first", "p_last", "p_begin", "p_end"))
    if not given["PADDING"]:
        given |= dict.fromkeys(("p_padding", "p_before"))
    return given


def _signature(
    kernel: Any,
    constexprs: dict[str, Any],
    aligned: tuple[str, ...] = ("stride_", "num_q", "num_k"),
    **exceptions: str,
) -> dict[str, str]:
    """The types of a kernel's run-time arguments but descriptors, which its names give away.

    Integers whose names begin with ``aligned`` count as divisible by 16, as in usual calls.
    """
    types = {name: f"{kind}:16" for kind, names in _POINTERS.items() for name in names}
    types |= exceptions
    signature = {}
    for name in kernel.arg_names:
        if name in constexprs or name.endswith("_desc"):
            continue
        if name.startswith("p_"):
            signature[name] = types.get(name, "*bf16:16")
        elif name.startswith("scale"):
            signature[name] = "fp32"
        else:
            signature[name] = "i32:16" if name.startswith(aligned) else "i32"
    return signature


def _decode_cases(capability: int) -> list[AotCase]:
    """The smallest and the largest block of rows per width, keys per map and shared; the merge."""
    small = capability_row(*divmod(capability, 10)) in SMALL_SHARED
    shared_bytes = decode.SMALL_SHARED_BYTES if small else decode.LARGE_SHARED_BYTES
    cases: list[AotCase] = []
    for head_dim in (32, 64, 96, 128):
        for shared_keys, value_dim in ((False, 2 * head_dim), (True, head_dim)):
            for num_rows in (2, 256):
                tiles = decode.tiles_of(num_rows, head_dim, value_dim, shared_keys, 2, shared_bytes)
                for page_size in (0, 64) if head_dim in (64, 128) else (0,):
                    sizes = (head_dim, value_dim, shared_keys, page_size)
                    cases.append(_decode_case(*sizes, dict(tiles)))
    cases.append(_combine_case(256))
    ones = ("num_queries", "num_kv_heads", "GROUP")
    constants = {"p_padding": None, "WINDOWED": False, "HAS_PADDING": False} | dict.fromkeys(
        ones, 1
    )
    return [*cases, _with_ones(cases[0], constants), _with_ones(cases[-1], constants)]


def _decode_case(
    head_dim: int, value_dim: int, shared_keys: bool, page_size: int, tiles: dict[str, int]
) -> AotCase:
    """A launch on a dense cache, or with a page size through a block table, without padding."""
    kernel, num_warps = decode._diff_attention_decode_kernel, tiles.pop("num_warps")
    num_stages = tiles.pop("num_stages") + (decode.TABLE_STAGES if page_size else 0)
    constexprs = {
        "NUM_MAPS": 2, "GROUP": 4,
        "HEAD_DIM": head_dim, "VALUE_DIM": value_dim, "SHARED_KEYS": shared_keys,
        "CAUSAL": True, "WINDOWED": True, "HAS_LENGTHS": True, "HAS_PADDING": not page_size,
        "PRECISION": "tf32", **tiles, "PAGE_SIZE": page_size,
        "p_padding" if page_size else "p_table": None,
    }  # fmt: skip
    aligned = ("stride_q", "stride_k", "stride_v")
    kind = f"{'shared' if shared_keys else 'own'}-keys-rows{tiles['BLOCK_ROWS']}"
    return AotCase(
        name=f"decode-d{head_dim}-{kind}{f'-page{page_size}' if page_size else ''}", kernel=kernel,
        signature=_signature(kernel, constexprs, aligned, p_padding="*i8:16"),
        constexprs=constexprs, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip


def _combine_case(value_dim: int) -> AotCase:
    kernel = decode._diff_attention_combine_kernel
    widths = {"VALUE_DIM": value_dim, "BLOCK_V": value_dim}
    constexprs = {"NUM_MAPS": 2, "GROUP": 4, "BLOCK_SPLITS": 16, **widths}
    return AotCase(
        name=f"decode-combine-dv{value_dim}", kernel=kernel,
        signature=_signature(kernel, constexprs, aligned=()), constexprs=constexprs,
        num_warps=4, num_stages=3,
    )  # fmt: skip


def _hopper_cases() -> list[AotCase]:
    """V1 and V2 at every width, with and without the causal mask, and two with counts of 1."""
    shapes = [
        (head_dim, value_dim, causal, shared_keys)
        for head_dim in hopper.TILES
        for value_dim, shared_keys in ((2 * head_dim, False), (head_dim, True))
        for causal in (True, False)
    ]
    cases = [case(*shape) for case in (_hopper_case, _by_map_case) for shape in shapes]
    backward = {
        case.name: case
        for shape in [*shapes, (128, 256, True, True)]  # the form that splits dK and dV
        for deterministic in (True, False)
        for launch in backward_launches.launches(shape[0], shape[1], shape[3], deterministic)
        for case in [_hopper_backward_case(launch, *shape)]
    }
    ones = dict.fromkeys(("num_queries", "num_keys", "num_heads", "stride_lt", "stride_lh"), 1)
    with_ones = [_with_ones(case, ones) for case in cases[:2]]
    with_ones += [_with_ones(case, ones | {"GROUP": 1}) for case in list(backward.values())[:2]]
    return [*cases, *backward.values(), *with_ones]


def _hopper_case(head_dim: int, value_dim: int, causal: bool, shared_keys: bool) -> AotCase:
    block_keys = hopper.TILES[head_dim][0]
    kernel = hopper._diff_attention_fwd_hopper_kernel
    constants = hopper.kernel_constants(4, head_dim, value_dim, causal, shared_keys)
    tiles = _tiles(hopper.block_shapes(head_dim, value_dim, block_keys))
    kind = ("causal" if causal else "full") + ("-shared-keys" if shared_keys else "")
    return AotCase(
        name=f"hopper-fwd-d{head_dim}-dv{value_dim}-{kind}",
        kernel=kernel,
        signature=tiles | _signature(kernel, constants, aligned=()),
        constexprs=constants,
        num_warps=4,
        num_stages=1,
        max_spill_bytes=0,
        options={"maxnreg": hopper.MAX_REGISTERS},
        # Of one map: each has four warps and loops of its own.
        tile_products=hopper.BLOCK_QUERIES * block_keys * (head_dim + value_dim),
        loop_warps=4,
    )


def _by_map_case(head_dim: int, value_dim: int, causal: bool, shared_keys: bool) -> AotCase:
    """The form that takes map 2 and then map 1; its warpgroups have a loop for both."""
    case = _hopper_case(head_dim, value_dim, causal, shared_keys)
    kernel = by_map._diff_attention_fwd_by_map_kernel
    constants = by_map.kernel_constants(4, head_dim, value_dim, causal, shared_keys)
    tiles = _tiles(hopper.block_shapes(head_dim, value_dim, by_map.BLOCK_KEYS))
    return replace(
        case,
        name=case.name.replace("-fwd-", "-by-map-"),
        kernel=kernel,
        signature=tiles | _signature(kernel, constants, aligned=()),
        constexprs=constants,
        options={"maxnreg": by_map.MAX_REGISTERS[head_dim]},
        tile_products=hopper.BLOCK_QUERIES * by_map.BLOCK_KEYS * (head_dim + value_dim),
    )


def _hopper_backward_case(
    launch: backward_launches.Launch, head_dim: int, value_dim: int, causal: bool, shared_keys: bool
) -> AotCase:
    constants = backward_launches.kernel_constants(
        launch, 4, head_dim, value_dim, causal, shared_keys
    )
    block = constants["BLOCK"]
    names = ("own_x", "own_v", "x", "v", "numbers")
    shapes = backward_launches.block_shapes(launch, head_dim, value_dim, block)
    kernel = hopper_backward._diff_attention_bwd_hopper_kernel
    tiles = _tiles(dict(zip(names, shapes, strict=True)))
    kind = ("causal" if causal else "full") + ("-shared-keys" if shared_keys else "")
    return AotCase(
        name=f"hopper-{launch.name}-d{head_dim}-dv{value_dim}-{kind}",
        kernel=kernel,
        signature=tiles | _signature(kernel, constants, aligned=(), p_dq="*fp32:16"),
        constexprs=constants,
        num_warps=4,
        num_stages=1,
        # Two registers, before the loop: of the addresses of dQ.
        max_spill_bytes=8 if launch.with_q and head_dim == 128 else 0,
        options={"maxnreg": backward_launches.MAX_REGISTERS},
        tile_products=backward_launches.ROWS * block * launch.width(head_dim, value_dim),
        loop_warps=4,
    )


def _tiles(shapes: dict[str, list[int]]) -> dict[str, str]:
    """The types of TMA's descriptors: bfloat16, but float32 of the rows' numbers."""
    dtypes = {name: gl.float32 if name == "numbers" else gl.bfloat16 for name in shapes}
    return {
        f"{name}_desc": f"tensordesc<{dtypes[name]}{shape},"
        f"{hopper.shared_layout(shape, dtypes[name])!r}>"
        for name, shape in shapes.items()
    }


def _with_ones(case: AotCase, constants: dict[str, Any]) -> AotCase:
    """A launch turns a count of 1 into a constant, which compiles another way."""
    given = {name: constants[name] for name in case.kernel.arg_names if name in constants}
    signature = {name: kind for name, kind in case.signature.items() if name not in given}
    return replace(
        case, name=f"{case.name}-ones", signature=signature, constexprs=case.constexprs | given
    )
