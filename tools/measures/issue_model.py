"""Clocks that a Hopper kernel takes per tile, by a model of one quarter of a multiprocessor.

One warp of each warpgroup runs the assembled loop, in order: an instruction waits for its
operands, its pipe, the slot of issue and its barriers. A third party copies tiles into the ring.
Pipes and latencies are those of the vendor's tables and of public measurements; the model knows no
bank conflicts, no other programs and no change of the clock. It compares forms; it times none.

``python -m tools.measures.issue_model`` compiles both forms of the Hopper forward and prints their
shares of the tensor cores' peak, as docs/records/hopper_forward.md has them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tools.machine_code import product_loops

PIPES = {
    "MUFU": ("special", 8, 18), "SHFL": ("shared", 4, 24), "LDS": ("shared", 4, 30),
    "FADD": ("fma", 1, 4), "FMUL": ("fma", 1, 4), "FFMA": ("fma", 1, 4), "IMAD": ("fma", 2, 5),
    "SYNCS": ("shared", 2, 22), "BAR": ("shared", 2, 22),
}  # fmt: skip
"""Pipe, clocks that one warp holds it, and clocks until the result may be read."""
_UNIFORM = ("uniform", 2, 10)
_OTHER = ("alu", 2, 5)
COPY_LATENCY = 800
"""Clocks from the order of a copy to its first bytes."""
_DRAIN = 32
"""Clocks from the end of a product until its sums may be read."""
_OPCODE = re.compile(r"(?:@!?(U?P\w+)\s+)?([A-Z0-9_]+)")
_PRODUCT = re.compile(r"HGMMA\.64x(\d+)x16")
_REGISTER = re.compile(r"\b(?:U?R\d+|U?P\d)\b")
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class _Instruction:
    kind: str
    """``product``, ``drained``, ``wait``, ``arrive``, ``sync`` or ``""``."""
    value: int
    """Clocks of a product; groups that a wait for products leaves; else the number of its kind."""
    closes_group: bool
    pipe: tuple[str, int, int]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(slots=True)
class _Warp:
    program: list[_Instruction]
    clock: float
    tile: int = 0
    place: int = 0
    registers: dict[str, float] = field(default_factory=dict)
    queue: list[tuple[float, int, bool]] = field(default_factory=list)
    """Products that are ordered: since when, clocks, whether a group ends."""
    closed: int = 0
    """Groups of products that are ordered."""
    groups: list[float] = field(default_factory=list)
    """When groups were done."""
    ends: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """A kernel's order of events, which its machine code does not name."""

    waits: Sequence[str]
    """Barriers that a turn of the loop waits at, in order: ``k``, ``v``, ``turn``, ``done``."""
    arrivals: Sequence[str]
    """Barriers that it arrives at, in order."""
    copies: dict[str, int]
    """Bytes of a tile of keys of one warpgroup (``k``) and of values (``v``)."""
    stages: int = 2
    keys_ahead: bool = False
    """Whether the keys of the next tile are ordered before the values of this one."""
    shared_keys: bool = False
    """Whether all warpgroups read one tile of keys."""
    copy_bytes: float = 25.0
    """Bytes per clock that L2 gives each multiprocessor."""
    in_order: bool = False
    """Whether the tensor core takes products in the order of their issue, not one warp after the
    other. No document says which it does."""


def read_loops(sass: str) -> list[list[_Instruction]]:
    """The loops of a kernel that multiply, as the model runs them."""
    return [_read(lines) for lines in product_loops(sass)]


def _read(lines: list[str]) -> list[_Instruction]:
    program = []
    numbers = {"wait": 0, "arrive": 0}
    jump = next((n for n, line in enumerate(lines) if line.startswith("BRA ")), len(lines) + 2)
    for line in lines[: jump - 2]:  # behind it, waits are tried again
        match = _OPCODE.match(line)
        if match is None:
            continue
        guard, name = match[1], match[2]
        operands = _REGISTER.findall(line[match.end() :])
        if product := _PRODUCT.search(line):
            value = int(product[1]) // 2  # 64 · n · 16 multiply-adds, 2,048 a clock
            program.append(_Instruction("product", value, "gsb0" in line, _OTHER, (), ()))
            continue
        kind, value = "", 0
        if "DEPBAR" in line and "gsb0" in line:
            kind, value = "drained", int(line.rstrip(" ;").split(",")[-1], 16)
        elif "PHASECHK" in line or "SYNCS.ARRIVE" in line:
            kind = "wait" if "PHASECHK" in line else "arrive"
            value, numbers[kind] = numbers[kind], numbers[kind] + 1
        elif name == "BAR":
            kind = "sync"
        pipe = PIPES.get(name, _UNIFORM if name.startswith("U") else _OTHER)
        reads = tuple(filter(None, (guard, *operands[1:])))
        program.append(_Instruction(kind, value, False, pipe, reads, tuple(operands[:1])))
    return program


class _Quarter:
    def __init__(self, loops: Sequence[list[_Instruction]], form: Form, tiles: int) -> None:
        self.form, self.tiles = form, tiles
        self.warps = [_Warp(loop, 0.0) for loop in loops]
        self.pipes: dict[str, float] = {}
        self.busy: dict[str, float] = {}
        self.arrived: dict[tuple[str, int, int], float] = {}
        self.ready: dict[tuple[str, int, int], float] = {}
        self.issue = self.copied = self.ordered = self.tensor = 0.0
        self.served = 1
        self.orders = self._orders()

    def _orders(self) -> list[tuple[str, int, int]]:
        groups = (0,) if self.form.shared_keys else range(len(self.warps))
        keys = [[("k", group, tile) for group in groups] for tile in range(self.tiles + 1)]
        values = [[("v", 0, tile)] for tile in range(self.tiles + 1)]
        ahead = int(self.form.keys_ahead)
        orders = [order for tile in range(ahead) for order in keys[tile]]
        for tile in range(self.tiles + 1 - ahead):
            orders += keys[tile + ahead] + values[tile]
        return orders + (values[-1] if ahead else [])

    def copy(self) -> None:
        """Order what has room in the ring."""
        while self.orders:
            kind, group, tile = self.orders[0]
            every = kind == "v" or self.form.shared_keys
            readers = range(len(self.warps)) if every else (group,)
            before = tile - self.form.stages
            free = [self.arrived.get((kind, x, before), _NEVER) for x in readers if before >= 0]
            if _NEVER in free:
                return
            self.orders.pop(0)
            self.ordered = max([self.ordered, *free])
            began = max(self.copied, self.ordered)
            self.copied = began + self.form.copies[kind] / self.form.copy_bytes
            for reader in readers:
                self.ready[kind, reader, tile] = self.copied + COPY_LATENCY

    def passes(self, number: int, index: int) -> float:
        """When the wait ``number`` of a warp's loop ends."""
        name, tile = self.form.waits[number], self.warps[index].tile + 1
        if name == "done":
            return 0.0
        if name == "turn":
            turn = ((index - 1) % len(self.warps), tile - 1 if index == 0 else tile)
            return 0.0 if turn[1] == 0 else self.arrived.get(("turn", *turn), _NEVER)
        return self.ready.get((name, index, tile if name == "k" else tile - 1), _NEVER)

    def earliest(self, index: int) -> float:
        """When the next instruction of a warp may issue."""
        warp = self.warps[index]
        if warp.tile == self.tiles:
            return _NEVER
        step = warp.program[warp.place]
        time = max([warp.clock, self.issue, *(warp.registers.get(x, 0.0) for x in step.reads)])
        if step.kind == "product":
            return time
        if step.kind == "drained" and (group := warp.closed - step.value) > 0:
            time = max(
                time, warp.groups[group - 1] + _DRAIN if group <= len(warp.groups) else _NEVER
            )
        if step.kind == "wait":
            time = max(time, self.passes(step.value, index))
        return max(time, self.pipes.get(step.pipe[0], 0.0))

    def next_product(self) -> float:
        """When the tensor core begins its next product."""
        return max(self.tensor, min((x.queue[0][0] for x in self.warps if x.queue), default=_NEVER))

    def multiply(self, time: float) -> None:
        """Take a product of a warpgroup that has one."""
        able = [n for n, x in enumerate(self.warps) if x.queue and x.queue[0][0] <= time]
        if self.form.in_order:
            able = [min(able, key=lambda n: self.warps[n].queue[0][0])]
        self.served = min(able, key=lambda n: (n - self.served - 1) % len(self.warps))
        warp = self.warps[self.served]
        _, clocks, closes = warp.queue.pop(0)
        self.tensor = time + clocks
        self.busy["tensor"] = self.busy.get("tensor", 0.0) + clocks
        if closes:
            warp.groups.append(self.tensor)

    def run(self, index: int, time: float) -> None:
        """Issue the next instruction of a warp."""
        warp = self.warps[index]
        step = warp.program[warp.place]
        name, clocks, latency = step.pipe
        if step.kind == "product":
            name, clocks = "order", 1
            warp.queue.append((time, step.value, step.closes_group))
            warp.closed += step.closes_group
        if step.kind == "arrive":
            kind = self.form.arrivals[step.value]
            tile = warp.tile if kind == "v" else warp.tile + 1
            self.arrived[kind, index, tile] = time + latency
            self.copy()
        self.pipes[name] = time + clocks
        self.busy[name] = self.busy.get(name, 0.0) + clocks
        self.busy["issue"] = self.busy.get("issue", 0.0) + 1
        warp.registers |= dict.fromkeys(step.writes, time + latency)
        self.issue = time + 1
        warp.clock = time + (latency if step.kind == "sync" else 1)
        warp.place += 1
        if warp.place == len(warp.program):
            warp.tile, warp.place = warp.tile + 1, 0
            warp.ends.append(time)


def clocks_per_tile(
    loops: Sequence[list[_Instruction]], form: Form, *, tiles: int = 32
) -> dict[str, float]:
    """Clocks of one turn of both loops, and the share of it that each pipe is busy."""
    quarter = _Quarter(loops, form, tiles)
    indices = range(len(loops))
    for index in indices:
        quarter.arrived["k", index, 0] = 0.0  # block 0, whose softmax stands before the loop
    quarter.copy()
    last = 0
    while any(warp.tile < tiles for warp in quarter.warps):
        times = [quarter.earliest(index) for index in indices]
        index = min(indices, key=lambda x: (times[x], (x - last - 1) % len(loops)))
        if (time := quarter.next_product()) <= times[index]:
            assert time < _NEVER, "all warpgroups wait for ever"
            quarter.multiply(time)
            continue
        quarter.run(index, times[index])
        last = index
    end = max(warp.ends[-1] for warp in quarter.warps)
    begin = max(warp.ends[tiles // 4 - 1] for warp in quarter.warps)
    clocks = (end - begin) / (tiles - tiles // 4)
    shares = {name: round(busy / end, 3) for name, busy in quarter.busy.items()}
    return {"clocks": round(clocks, 1)} | shares


def main() -> None:
    """Print the table's rates of the forms that the package has, V1 under a causal mask."""
    from tools import aot
    from tools.aot_cases import aot_cases

    cases = {case.name: case for case in aot_cases(90)}
    for head_dim, form in ((d, form) for d in (64, 128) for form in ("fwd", "by-map")):
        case = cases[f"hopper-{form}-d{head_dim}-dv{2 * head_dim}-causal"]
        cubin = aot.compiled(case, 90).asm["cubin"]
        loops = read_loops(aot.disassemble(cubin))[::2]  # without the masked ones
        tile = case.constexprs["BLOCK_KEYS"] * head_dim * 2  # bytes
        events = Form(waits=("k", "v"), arrivals=("k", "v"), copies={"k": tile, "v": 2 * tile})
        if form == "by-map":
            events = replace(
                events, waits=("k", "turn", "v", "done"), arrivals=("turn", "k", "v"),
                stages=case.constexprs["STAGES"], keys_ahead=True, shared_keys=True,
            )  # fmt: skip
        needed = case.tile_products * len(loops) / 2048
        for copy_bytes, in_order in ((1e9, False), (1e9, True), (25.0, False), (25.0, True)):
            given = replace(events, copy_bytes=copy_bytes, in_order=in_order)
            share = needed / clocks_per_tile(loops, given)["clocks"]
            print(f"{case.name}: {share:.2f} at {copy_bytes:g} bytes, in order: {in_order}")


if __name__ == "__main__":
    main()
