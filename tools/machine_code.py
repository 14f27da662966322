"""Count a kernel's work per turn of its loops, from its PTX and its assembled code.

Products and copies are counted in PTX, where their shapes stand; reloads in SASS, where registers
have been allotted. A loop is a cycle of basic blocks; judged are the innermost that multiply.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from diffattn.ops.triton.configs import GRADIENTS

_PTX_LABEL = re.compile(r"^(\$\w+):")
_SASS_LABEL = re.compile(r"^(\.L_\w+):")
_PTX_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+)")
_SASS_BRANCH = re.compile(r"\b(?:BRA|BRX|JMP|CALL|BSSY|WARPSYNC)\b.*?`\((\.L_\w+)\)")
_PTX_END = re.compile(r"^(?:bra\.uni\s+\$|bra\s+\$|ret\b|exit\b|trap\b)")
_SASS_END = re.compile(r"^(?:BRA(?:\.\w+)*\s+`|EXIT|RET|JMP\s+`)")
_SYNC_PRODUCT = re.compile(r"\bmma\.sync\.\S*?\.m(\d+)n(\d+)k(\d+)\.")
_GROUP_PRODUCT = re.compile(r"\bwgmma\.mma_async\.\S*?\.m(\d+)n(\d+)k(\d+)\.")
_TENSOR_PRODUCT = re.compile(
    r"\btcgen05\.mma\.cta_group::1\.kind::(\w+)\s+\[[^]]*\],\s*[^,]+,\s*[^,]+,\s*(\S+?)\s*[,;]"
)
_TENSOR_DEPTHS = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}
"""Channels that one instruction of Blackwell's tensor cores multiplies: 32 bytes of them."""
_SASS_PRODUCT = re.compile(r"\b(?:HMMA|IMMA|QMMA|OMMA|HGMMA|IGMMA|QGMMA|UTC\w*MMA)\b")
_WIDE_LOAD = re.compile(r"\bld\.global\.\S*(?:v2|v4|b64|b128)\S*\s+(\{[^}]*\}|%\w+)")
_SHARED_STORE = re.compile(r"\bst\.shared\.\S+\s+\[[^]]*\],\s*(\{[^}]*\}|%\w+)")
_MOVE = re.compile(r"\b(?:mov|prmt|selp|cvt|and|or|shl|shr)\.\S+\s+(\{[^}]*\}|%\w+),\s*(.*)")
_REGISTER = re.compile(r"%\w+")


@dataclass(slots=True)
class _Block:
    lines: list[str] = field(default_factory=list)
    followers: set[int] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopCounts:
    """One innermost loop that multiplies, per program and turn."""

    products: int
    """Multiply-adds that the tensor cores do, of all warps together."""
    copies: int
    """Instructions per thread that put a tile which the loop itself has loaded into shared memory:
    the warp waits for the load, where an asynchronous copy would not."""


def count_loops(ptx: str, num_warps: int) -> list[LoopCounts]:
    """The innermost loops of a kernel that use tensor cores, each run by ``num_warps`` together."""
    constants = dict(re.findall(r"\bmov\.b32\s+(%\w+),\s*(-?\d+);", ptx))
    loops = _product_loops(
        _blocks(ptx, _PTX_LABEL, _PTX_BRANCH, _PTX_END),
        lambda line: _products(line, num_warps, constants) > 0,
    )
    return [
        LoopCounts(
            products=sum(_products(line, num_warps, constants) for line in lines),
            copies=_count_copies(lines),
        )
        for lines in loops
    ]


def count_reloads(sass: str) -> int:
    """Loads of spilled registers in the worst innermost loop that multiplies, per thread and turn.

    ``sass`` is the code of one kernel as ``nvdisasm -c`` prints it.
    """
    return max((sum("LDL" in line for line in lines) for lines in product_loops(sass)), default=0)


def product_loops(sass: str) -> list[list[str]]:
    """The lines of each innermost loop that multiplies, in assembled code."""
    text = re.sub(r"/\*.*?\*/", "", sass)
    return _product_loops(
        _blocks(text, _SASS_LABEL, _SASS_BRANCH, _SASS_END),
        lambda line: _SASS_PRODUCT.search(line) is not None,
    )


def _products(line: str, num_warps: int, constants: dict[str, str]) -> int:
    """Multiply-adds of one instruction over the warps that issue it."""
    if match := _SYNC_PRODUCT.search(line):
        m, n, k = map(int, match.groups())
        return m * n * k * num_warps
    if match := _GROUP_PRODUCT.search(line):
        m, n, k = map(int, match.groups())
        return m * n * k * num_warps // 4
    if match := _TENSOR_PRODUCT.search(line):  # one thread issues it for the whole program
        shape = int(constants.get(match[2], match[2]))
        rows, columns = (shape >> 24 & 0x1F) << 4, (shape >> 17 & 0x3F) << 3
        return rows * columns * _TENSOR_DEPTHS[match[1]]
    return 0


def _count_copies(lines: list[str]) -> int:
    """Stores to shared memory of what wide loads of the same loop have brought."""
    loaded: set[str] = set()
    for _ in range(2):  # the loop may store in one turn what it has loaded in the turn before
        copies = 0
        for line in lines:
            if match := _WIDE_LOAD.search(line):
                loaded.update(_REGISTER.findall(match[1]))
            elif match := _SHARED_STORE.search(line):
                copies += bool(loaded & {*_REGISTER.findall(match[1])})
            elif (match := _MOVE.search(line)) and loaded & {*_REGISTER.findall(match[2])}:
                loaded.update(_REGISTER.findall(match[1]))
    return copies


def _blocks(
    text: str, label: re.Pattern[str], branch: re.Pattern[str], end: re.Pattern[str]
) -> list[_Block]:
    blocks = [_Block()]
    starts: dict[str, int] = {}
    targets: list[tuple[int, str]] = []
    for raw in text.splitlines():
        line = raw.strip()
        if match := label.match(line):
            if blocks[-1].lines:
                blocks.append(_Block())
            starts[match[1]] = len(blocks) - 1
            continue
        blocks[-1].lines.append(line)
        targets += [(len(blocks) - 1, name) for name in branch.findall(line)]
        if branch.search(line) or end.match(line):
            blocks.append(_Block())
    for number, block in enumerate(blocks[:-1]):
        if not (block.lines and end.match(block.lines[-1])):
            block.followers.add(number + 1)
    for number, name in targets:
        if name in starts:
            blocks[number].followers.add(starts[name])
    return blocks


def _product_loops(blocks: list[_Block], multiplies: Callable[[str], bool]) -> list[list[str]]:
    """The lines of each innermost cycle of blocks that multiplies."""
    hot = {n for n, block in enumerate(blocks) if any(map(multiplies, block.lines))}
    loops = _innermost(blocks, set(range(len(blocks))), hot)
    return [[line for n in sorted(loop) for line in blocks[n].lines] for loop in loops]


def _innermost(blocks: list[_Block], inside: set[int], hot: set[int]) -> list[set[int]]:
    loops = []
    for loop in sorted(_cycles(blocks, inside), key=min):
        if not loop & hot:
            continue
        outside = (n for n in range(len(blocks)) if n not in loop)
        entries = {follower for n in outside for follower in blocks[n].followers & loop}
        # Without its entry, only the cycles inside a loop are left.
        loops += _innermost(blocks, loop - {min(entries or loop)}, hot) or [loop]
    return loops


def _cycles(blocks: list[_Block], inside: set[int]) -> Iterable[set[int]]:
    """Strongly connected blocks: those that reach one another without leaving ``inside``."""
    before: dict[int, set[int]] = {n: set() for n in inside}
    for n in inside:
        for follower in blocks[n].followers & inside:
            before[follower].add(n)
    after = {n: blocks[n].followers & inside for n in inside}
    left = set(inside)
    while left:
        start = min(left)
        cycle = _reach(start, after, left) & _reach(start, before, left)
        left -= cycle
        if len(cycle) > 1 or start in after[start]:
            yield cycle


def _reach(start: int, edges: dict[int, set[int]], inside: set[int]) -> set[int]:
    reached, waiting = {start}, [start]
    while waiting:
        new = (edges[waiting.pop()] & inside) - reached
        reached |= new
        waiting += new
    return reached


def max_spill_bytes(launch: str, capability: int) -> int:
    """Bytes that may spill outside the loops that multiply; see ``assert_no_waste``.

    It costs once per block of queries or keys. Intervals spill the most: they have three loops, and
    between them stands what the next one starts from.
    """
    if launch == "fwd_by_map":
        return 1664 if capability == 90 else 1536  # where the two maps are joined
    if launch.removeprefix("softmax_") in GRADIENTS:  # between the query heads of a group
        # Of sm_100 dK and dV of V1 at d 128, which deterministic runs alone take, spill the most.
        return 3072 if 100 <= capability < 120 else 640
    return 192 if capability == 90 else 128  # V2 at d 128, whose tile was measured
