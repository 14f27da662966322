"""Run by test_launcher.py without Triton's interpreter: which form of a kernel is started."""

import itertools

import torch
import triton
import triton.language as tl
from triton.runtime import jit

from diffattn.lab.benchmark.host import no_device
from diffattn.ops.triton import launcher


@triton.jit
def _add_kernel(p_x, p_y, stride_x, stride_y, scale, WIDTH: tl.constexpr, FLAG: tl.constexpr):
    pass


started = []


class Compiled:
    """Notes its form and its arguments when it is started."""

    function = packed_metadata = None

    def __init__(self, form):
        self.form = form

    def launch_metadata(self, *arguments):
        return None

    def run(self, x, y, z, stream, function, metadata, launch, enter, leave, *arguments):
        values = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in arguments]
        started.append((self.form, (x, y, z), values))

    def __getitem__(self, grid):
        return lambda *arguments: self.run(*grid, *[None] * 6, *arguments)


def compile_form(kernel, key, signature, device, constants, options, attributes, warmup):
    form = kernel.device_caches[device][0][key] = Compiled(key)
    return form


jit.JITFunction._do_compile = compile_form
storage = torch.zeros(64)
halves = torch.zeros(64, dtype=torch.bfloat16)
tensors = (storage, storage[1:], halves, halves[8:], None)
numbers = (0, 1, 2, 15, 16, 17, 32, 2**31 - 1, 2**31, 2**31 + 16)
calls = list(itertools.product(tensors, (storage, None), numbers, (1, 16), (0.5, 1.0)))
with no_device():
    for _ in range(3):  # compiled, found by its form, found by its numbers
        for width, flag in ((1, True), (16, False)):
            for x, y, n, m, scale in calls:
                constants = {"WIDTH": width, "FLAG": flag, "num_warps": 4}
                launcher.run_kernel(_add_kernel, (3, 2, 1), (x, y), (n, m, scale), **constants)
                _add_kernel[(3, 2, 1)](x, y, n, m, scale, **constants)
                ours, theirs = started[-2:]
                assert ours == theirs, (ours, theirs)
assert len(launcher._FORMS) < len(launcher._CALLS) <= 2 * len(calls)


class Nothing:
    """A kernel whose start is a hook's."""

    arg_names = ("p_x",)

    def __getitem__(self, grid):
        return lambda *arguments, **constants: None


with no_device():
    for _ in range(2):
        launcher.run_kernel(Nothing(), (1, 1, 1), (storage,), ())
print(len({form for form, *_ in started}))
