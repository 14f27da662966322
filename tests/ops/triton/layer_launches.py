"""Run by test_launcher.py without Triton's interpreter; no kernel is compiled.

First, which form of a kernel is started. Then launches of a call and of an attention layer: every
operator counts that would start a kernel on a GPU, thus no view and no new memory. Triton's kernels
count by their names. PyTorch's attention counts once in each direction.
"""

import itertools
import json
from collections import Counter
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import jit

from diffattn.lab.benchmark.host import host_call, no_device, record_launches
from diffattn.layers.attention import SoftmaxAttention
from diffattn.layers.diff_attention import DiffAttention, DiffAttentionV2
from diffattn.layers.shared_diff_attention import SharedDiffAttention
from diffattn.ops import layer_parts
from diffattn.ops.inputs import operators
from diffattn.ops.inputs.formulas import rotary_embedding
from diffattn.ops.triton import backward, forward
from diffattn.ops.triton import launch as launcher
from diffattn.ops.triton import layer_parts as kernels


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

NO_LAUNCH = {"detach", "empty", "empty_like", "new_empty", "_unsafe_view"}
ATTENTION = ("_diff_attention", "_scaled_dot_product")
LAYERS = {
    "softmax": lambda: SoftmaxAttention(256, 4, 64),
    "diff": lambda: DiffAttention(256, 2, 64),
    "diff_v2": lambda: DiffAttentionV2(256, 4, 64),
    "shared_diff": lambda: SharedDiffAttention(256, 2, 64, shared_rank=16),
}
counts = Counter()


class CountLaunches(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.removeprefix("aten::")
        returns = function._schema.returns
        is_view = any(x.alias_info and not x.alias_info.is_write for x in returns)
        if not is_view and name not in NO_LAUNCH:
            counts[name] += 1
        return function(*args, **(kwargs or {}))


def note(kernel, *arguments, **constants):
    counts[kernel.__name__] += 1


def launches_of(run):
    """The result of ``run``, and its launches: of attention, and of everything else."""
    counts.clear()
    with CountLaunches():
        result = run()
    attention = sum(n for name, n in counts.items() if name.startswith(ATTENTION))
    return result, [attention, counts.total() - attention]


def count(make, dtype=torch.bfloat16):
    layer = make().to(dtype)
    x = torch.zeros(1, 128, 256, dtype=dtype, requires_grad=True)
    tables = [y.to(dtype) for y in rotary_embedding(torch.arange(128), 64)]
    y, ahead = launches_of(lambda: layer(x, tables))
    inputs, grad = [x, *layer.parameters()], torch.ones_like(y)
    _, back = launches_of(lambda: torch.autograd.grad(y, inputs, grad))
    return ahead + back


def count_calls():
    """Launches and new tensors of each call."""
    for name, with_backward in itertools.product(("V1", "V2"), (False, True)):
        call, _ = host_call(name, with_backward, "cpu")
        call()
        with torch.profiler.profile() as profile:
            call()
        events = profile.key_averages()
        tensors = sum(event.count for event in events if event.key.startswith("aten::empty"))
        yield len(record_launches(call)), tensors


def count_all():
    return {name: count(make) for name, make in LAYERS.items()}


with no_device():
    print(json.dumps(list(count_calls())))
    for module in (forward, backward, kernels):
        module.run_kernel = note
    for module in (operators, layer_parts):
        module.is_plain = lambda *tensors: True  # though the counter looks on
    with patch.object(layer_parts, "kernels_run_on", lambda device: False):
        print(json.dumps(count_all()))
    print(json.dumps(count_all()))
