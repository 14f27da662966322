"""The kernels under PyTorch's own machinery: tracing, recomputation, graphs, streams, devices."""

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from backend_skips import require_backend
from diffattn import diff_attention
from diffattn.lab.testing.inputs import OpCase, make_diff_attention_inputs
from diffattn.ops.inputs.masking import AttentionMask

from .gpu_cases import ON_GPU

pytest.importorskip("triton", reason="the kernels need triton")

needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
LENGTH, NUM_HEADS = (300, 4) if ON_GPU else (5, 2)
V1 = OpCase(name="v1", num_queries=LENGTH, batch=2, num_heads=NUM_HEADS,
            num_kv_heads=NUM_HEADS // 2, head_dim=64, value_dim=128, lam_axes="h")  # fmt: skip
CASES = (
    V1,
    replace(V1, name="v2-window", shared_keys=True, value_dim=64, lam_axes="bth", window=3),
    replace(V1, name="v1-cache", num_keys=LENGTH + 7, kv_lengths=(LENGTH + 7, LENGTH),
            padding=((1, 0), (0, 2))),
    replace(V1, name="v1-packed", batch=1, documents=(2, LENGTH - 2)),
)[:: 1 if ON_GPU else 2]  # fmt: skip
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
FORMS = ("triton", "hopper")
CODE = "inductor" if ON_GPU else "aot_eager"


def attend(*arguments):
    """Of q, k, v and λ, the name of a backend and the options."""
    q, k, v, lam, backend, options = arguments
    return diff_attention(q, k, v, lam, backend=backend, **options)


def make(case, backend, device):
    """Inputs, or a skip where the backend does not run."""
    if backend == "hopper":
        require_backend("diff_attention", backend, device=device, dtype=DTYPE, case=case)
        if case.name != V1.name:
            pytest.skip("the Hopper kernel takes no mask besides causal")
    inputs = make_diff_attention_inputs(case, dtype=DTYPE, device=device)
    return list(inputs.tensors().values()), inputs.options


def output_and_gradients(function, tensors, backend, options):
    out = function(*tensors, backend, options)
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out)
    return [out.detach(), *torch.autograd.grad(out, tensors, weights)]


def assert_same(got, want):
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y)


@pytest.mark.sampled(one_of=2)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("op", ["triton_diff_attention", "triton_decode", "hopper_diff_attention"])
def test_opcheck(op, case, kernel_device):
    case = replace(case, num_queries=3) if op == "triton_decode" else case
    if op == "triton_decode" and case.documents is not None:
        pytest.skip("a packed row is no cache")
    backend = "hopper" if op.startswith("hopper") else "triton"
    tensors, options = make(case, backend, kernel_device)
    mask = list(AttentionMask(**options).flat())
    if op == "triton_decode":
        tensors, mask = [x.detach() for x in tensors], mask[:-1]
    elif backend == "hopper":
        mask = [mask[0], True]
    operator = getattr(torch.ops.diffattn, op).default
    torch.library.opcheck(operator, (*tensors, 0.125, *mask))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", FORMS)
def test_compile(backend, case, kernel_device, deterministic):
    """As one graph, by the compiler that users have."""
    torch.compiler.reset()
    tensors, options = make(case, backend, kernel_device)
    compiled = torch.compile(attend, fullgraph=True, backend=CODE)
    assert_same(
        output_and_gradients(compiled, tensors, backend, options),
        output_and_gradients(attend, tensors, backend, options),
    )


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize("backend", [*FORMS, "triton_decode"])
def test_export(backend, strict, kernel_device):
    class Attend(torch.nn.Module):
        def forward(self, q, k, v, lam):
            return diff_attention(q, k, v, lam, backend=backend)

    case = replace(V1, num_queries=2, num_keys=LENGTH) if backend == "triton_decode" else V1
    tensors, _ = make(case, backend, kernel_device)
    tensors = tuple(x.detach() for x in tensors)
    with torch.no_grad():
        program = torch.export.export(Attend(), tensors, strict=strict).module()
        assert torch.equal(program(*tensors), Attend()(*tensors))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", FORMS)
def test_activation_checkpointing(backend, case, kernel_device, deterministic):
    tensors, options = make(case, backend, kernel_device)

    def recomputed(*arguments):
        return checkpoint(attend, *arguments, use_reentrant=False)

    assert_same(
        output_and_gradients(recomputed, tensors, backend, options),
        output_and_gradients(attend, tensors, backend, options),
    )


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", FORMS)
def test_the_same_bits_again(backend, case, kernel_device, deterministic):
    """A race would show as a difference between runs."""
    tensors, options = make(case, backend, kernel_device)
    first = output_and_gradients(attend, tensors, backend, options)
    for _ in range(20 if ON_GPU else 1):
        assert_same(output_and_gradients(attend, tensors, backend, options), first)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def captured(run):
    """A graph of a call, and where every replay of it leaves the results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # kernels are compiled and loaded before the capture
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph, results


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", FORMS)
def test_cuda_graph(backend, case, kernel_device, deterministic):
    """Captured once, replayed on other values; a wait for the device would end the capture."""
    tensors, options = make(case, backend, kernel_device)

    graph, results = captured(lambda: output_and_gradients(attend, tensors, backend, options))
    with torch.no_grad():
        for x in tensors:
            x.copy_(torch.randn_like(x))
    graph.replay()
    results = [x.clone() for x in results]
    assert_same(results, output_and_gradients(attend, tensors, backend, options))


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [None, (4_000, 700)], ids=["full", "kv_lengths"])
def test_cuda_graph_of_decoding(lengths, kernel_device):
    case = replace(V1, num_queries=1, num_keys=4_096, kv_lengths=lengths)
    tensors, options = make(case, "triton_decode", kernel_device)
    with torch.no_grad():
        graph, result = captured(lambda: attend(*tensors, "triton_decode", options))
        tensors[0].copy_(torch.randn_like(tensors[0]))
        graph.replay()
        assert torch.equal(result, attend(*tensors, "triton_decode", options))


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("backend", [*FORMS, "triton_decode"])
def test_another_stream(backend, kernel_device):
    """The kernel waits for what its own stream still has to write, not for the default stream."""
    case = replace(V1, num_queries=2, num_keys=LENGTH) if backend == "triton_decode" else V1
    tensors, options = make(case, backend, kernel_device)
    tensors = [x.detach() for x in tensors]
    q, *rest = tensors
    expected = attend(*tensors, backend, options)
    late = torch.full_like(q, 1e4)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # cycles: kernels of another stream would long be done
        late.copy_(q)
        actual = attend(late, *rest, backend, options)
    side.synchronize()
    assert torch.equal(actual, expected)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("backend", [*FORMS, "triton_decode"])
def test_another_device(backend, deterministic):
    """Tensors on the second device while the first is current."""
    case = replace(V1, num_queries=2, num_keys=LENGTH) if backend == "triton_decode" else V1
    results = []
    for index in (0, 1):
        tensors, options = make(case, backend, torch.device("cuda", index))
        with torch.set_grad_enabled(backend != "triton_decode"):
            out = attend(*tensors, backend, options)
            grads = torch.autograd.grad(out.sum(), tensors) if out.requires_grad else ()
        assert all(x.device.index == index for x in (out, *grads))
        results.append([x.detach().cpu() for x in (out, *grads)])
    assert_same(*results)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("backend", FORMS)
def test_memory_grows_with_tokens_not_with_their_square(backend, kernel_device):
    """Peak above the inputs, forward and backward: far below one pair of maps, and linear."""
    peaks = []
    for length in (2_048, 4_096):
        tensors, options = make(replace(V1, num_queries=length), backend, kernel_device)
        output_and_gradients(attend, tensors, backend, options)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        output_and_gradients(attend, tensors, backend, options)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    maps = 2 * V1.batch * V1.num_heads * 4_096**2 * DTYPE.itemsize
    assert peaks[1] < maps / 2
    assert peaks[1] < 2.2 * peaks[0]
