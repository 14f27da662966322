"""Runs a warp-specialised Gluon kernel in Python: its own source, against the rules of the chip.

Partitions take turns in random order; copies into shared memory finish at a random time and leave
NaN until then; a product must find the same operands when it is issued and when it is waited for.
What this cannot show: layouts, swizzles, registers, and anything the compiler does.
"""

import random
import threading
from typing import ClassVar

import torch


class Stuck(AssertionError):
    """No partition can go on."""


class Tile:
    """Shared memory, or a view of it."""

    unfenced: ClassVar = {}
    """Where a partition has stored what products cannot see before its fence."""

    def __init__(self, data):
        self.data, self.dtype, self.shape = data, data.dtype, list(data.shape)

    def index(self, i):
        return Tile(self.data[int(i)])

    def reshape(self, shape):
        return Tile(self.data.view(shape))

    def slice(self, start, length, dim):
        return Tile(self.data.narrow(dim, start, length))

    def permute(self, order):
        return Tile(self.data.permute(order))

    def store(self, value):
        self.data.copy_(value)
        self.unfenced[self.data.data_ptr()] = threading.current_thread()

    def load(self, layout):
        return self.data.clone()


class Descriptor:
    """What a kernel sees of a host descriptor."""

    def __init__(self, host):
        base = host.base
        self.tensor = base.as_strided(host.shape, host.strides, base.storage_offset())
        self.block_shape, self.layout, self.dtype = host.block_shape, host.layout, base.dtype
        self.block_type = self
        self.nbytes = torch.Size(self.block_shape).numel() * base.element_size()

    def tile(self, corner):
        """The tile at ``corner``; zeros outside the tensor."""
        tile = torch.zeros(self.block_shape, dtype=self.dtype)
        inside = [
            slice(int(c), min(int(c) + b, s))
            for c, b, s in zip(corner, self.block_shape, self.tensor.shape, strict=True)
        ]
        inner = self.tensor[tuple(inside)]
        tile[tuple(slice(0, size) for size in inner.shape)] = inner
        return tile


class Pointer:
    """An address in the memory of a tensor."""

    def __init__(self, flat, offset):
        self.flat, self.offset = flat, offset

    @classmethod
    def to(cls, x):
        size = x.untyped_storage().nbytes() // x.element_size()
        return cls(x.detach().as_strided((size,), (1,), 0), x.storage_offset())

    def __add__(self, offset):
        return Pointer(self.flat, self.offset + offset)

    def __getitem__(self, axes):
        return Pointer(self.flat, self.offset[axes])


class Barrier:
    """An mbarrier: a phase ends when all have arrived and all announced bytes are there."""

    def __init__(self, count):
        self.count = self.pending = count
        self.bytes = self.phase = 0

    def update(self, *, arrivals=0, nbytes=0):
        assert arrivals <= self.pending, "more arrivals than the barrier counts"
        self.pending -= arrivals
        self.bytes += nbytes
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.count


class Product:
    """A product in flight."""

    def __init__(self, a, b, acc):
        self.operands, self.acc, self.value = (a, b), acc, None
        self.at_issue = self.read()

    def read(self):
        tiles = [x.data for x in self.operands if isinstance(x, Tile)]
        assert not Tile.unfenced.keys() & {x.data_ptr() for x in tiles}, "a store without a fence"
        a, b = (x.data if isinstance(x, Tile) else x for x in self.operands)
        acc = self.acc.read() if isinstance(self.acc, Product) else self.acc
        return acc + a.float() @ b.float()

    def retire(self):
        self.value = self.read()
        assert self.value.isfinite().all(), "a product read what nobody wrote"
        assert torch.equal(self.value, self.at_issue), "operands changed under a product"


class Partition(threading.Thread):
    def __init__(self, work, chip):
        super().__init__(daemon=True)
        self.work, self.chip, self.error = work, chip, None
        self.ready, self.turn, self.products = (lambda: True), threading.Semaphore(0), []

    def run(self):
        self.turn.acquire()
        try:
            if not self.chip.over:
                self.work()
        except BaseException as error:
            self.error = error
        self.ready = None
        self.chip.back.release()

    def pause(self, ready=lambda: True):
        self.ready = ready
        self.chip.back.release()
        self.turn.acquire()
        if self.chip.over:
            raise SystemExit


class Chip:
    """One program at a time: ``gl``, ``mbarrier``, copies and products, in Python."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.copy_bias = self.random.choice([0.02, 0.5, 0.98])  # copies late, at any time, early
        self.back, self.over = threading.Semaphore(0), False
        self.barriers, self.copies, self.current, self.program = {}, [], None, (0, 0, 0)

    def launch(self, kernel, grid, arguments, constexprs):
        arguments = [
            Descriptor(x) if hasattr(x, "block_shape")
            else Pointer.to(x) if isinstance(x, torch.Tensor) else x
            for x in arguments
        ]  # fmt: skip
        self.grid = grid
        for x in range(grid[0]):
            for y in range(grid[1]):
                for z in range(grid[2]):
                    self.barriers.clear()
                    Tile.unfenced.clear()
                    self.program = (x, y, z)
                    kernel(*arguments, **constexprs)

    def warp_specialize(self, functions, num_warps, registers):
        partitions = [Partition(lambda f=f, a=a: f(*a), self) for f, a in functions]
        for partition in partitions:
            partition.start()
        try:
            while any(partition.ready for partition in partitions):
                able = [p for p in partitions if p.ready and p.ready()]
                early = not able or self.random.random() < self.copy_bias
                if self.copies and early:
                    self.copies.pop(self.random.randrange(len(self.copies)))()
                    continue
                if not able:
                    raise Stuck("every partition waits for another one")
                self.current = self.random.choice(able)
                self.current.turn.release()
                self.back.acquire()
                if self.current.error:
                    raise self.current.error
        finally:
            self.over = any(partition.ready for partition in partitions)
            for partition in partitions:
                partition.turn.release()
                partition.join()
        assert not self.copies, "a copy outlives the program"

    # gluon.language
    float32, int64 = torch.float32, torch.int64
    static_range = range
    exp2, log2, where = torch.exp2, torch.log2, torch.where

    class NVMMASharedLayout:
        @staticmethod
        def get_default_for(shape, dtype):
            from triton.experimental.gluon import language

            if isinstance(dtype, torch.dtype):
                return None
            return language.NVMMASharedLayout.get_default_for(shape, dtype)

    def layout(self, *args, **kwargs):
        return None

    NVMMADistributedLayout = DotOperandLayout = SliceLayout = MBarrierLayout = layout

    def program_id(self, axis):
        return torch.tensor(self.program[axis])

    def num_programs(self, axis):
        return self.grid[axis]

    arange = staticmethod(lambda start, end, layout: torch.arange(start, end))
    zeros = staticmethod(lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype))
    full = staticmethod(lambda shape, x, dtype, layout: torch.full(shape, x, dtype=dtype))
    maximum = staticmethod(lambda x, y: torch.maximum(*map(torch.as_tensor, (x, y))))
    minimum = staticmethod(lambda x, y: torch.minimum(*map(torch.as_tensor, (x, y))))
    max = staticmethod(lambda x, axis: x.amax(axis))
    sum = staticmethod(lambda x, axis: x.sum(axis))
    cdiv = staticmethod(lambda x, y: (x + y - 1) // y)
    expand_dims = staticmethod(lambda x, axis: x.unsqueeze(axis))
    convert_layout = staticmethod(lambda x, layout: x)

    @staticmethod
    def fence_async_shared():
        for address, partition in list(Tile.unfenced.items()):
            if partition is threading.current_thread():
                del Tile.unfenced[address]

    def load(self, pointer, mask, other):
        offsets = torch.where(mask, pointer.offset, 0)
        return torch.where(mask, pointer.flat[offsets], other)

    def store(self, pointer, value, mask):
        mask = mask.expand(value.shape)
        pointer.flat[pointer.offset[mask]] = value[mask]

    def atomic_add(self, pointer, value, sem):
        pointer.flat[pointer.offset] += value

    def allocate_shared_memory(self, dtype, shape, layout):
        filler = float("nan") if dtype.is_floating_point else 0
        return Tile(torch.full(shape, filler, dtype=dtype))

    # mbarrier, copies, warpgroup_mma
    def of(self, tile):
        return self.barriers[tile.data.data_ptr()][1]

    def init(self, tile, count):
        self.barriers[tile.data.data_ptr()] = tile, Barrier(count)  # keeps the address taken

    def expect(self, tile, nbytes):
        self.of(tile).update(arrivals=1, nbytes=nbytes)

    def arrive(self, tile, count):
        self.of(tile).update(arrivals=count)
        self.current.pause()

    def wait(self, tile, phase):
        self.current.pause(lambda: self.of(tile).phase & 1 != int(phase))

    def load_tile(self, descriptor, corner, barrier, result):
        assert list(result.shape) == list(descriptor.block_shape)
        tile = descriptor.tile(corner)
        result.data.fill_(float("nan"))

        def finish():
            result.data.copy_(tile)
            self.of(barrier).update(nbytes=-descriptor.nbytes)

        self.copies.append(finish)
        self.current.pause()

    def warpgroup_mma(self, a, b, acc, *, use_acc=True, is_async=False):
        product = Product(a, b, acc if use_acc else torch.zeros_like(acc))
        self.current.products.append(product)
        self.current.pause()
        return product

    def warpgroup_mma_wait(self, num_outstanding, deps):
        products = self.current.products
        while len(products) > num_outstanding:
            products.pop(0).retire()
        done = [d.value if isinstance(d, Product) and d.value is not None else d for d in deps]
        return done[0] if len(done) == 1 else tuple(done)


def emulate(monkeypatch, module, kernel_name, function_names, seed, chip=None):
    """Let the kernel ``kernel_name`` of ``module`` run on a :class:`Chip`, which is returned."""
    chip = chip or Chip(seed)
    kernel = getattr(module, kernel_name).fn

    class Launcher:
        def __getitem__(self, grid):
            def launch(*args, num_warps, maxnreg, enable_fp_fusion, **constexprs):
                chip.launch(kernel, grid, args, constexprs)

            return launch

    put_into(monkeypatch, module, chip, function_names)
    monkeypatch.setattr(module, kernel_name, Launcher())
    return chip


def put_into(monkeypatch, module, chip, function_names):
    """Let the functions of ``module`` call a :class:`Chip`."""
    for name in ("gl", "mbarrier"):
        monkeypatch.setattr(module, name, chip)
    for name in ("warpgroup_mma", "warpgroup_mma_wait", "fence_async_shared"):
        monkeypatch.setattr(module, name, getattr(chip, name), raising=False)
    monkeypatch.setattr(module, "_load_tile", chip.load_tile, raising=False)
    monkeypatch.setattr(module, "_sync_warpgroup", lambda: None, raising=False)
    for name in function_names:
        monkeypatch.setattr(module, name, getattr(module, name).fn)
