"""Memory of one training step by part, measured by running it on tensors without values.

Two layers are run, and all living tensors are counted by part and phase. Each further layer adds as
many bytes as the second layer.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from diffattn.lab.training.config import TrainConfig
from diffattn.lab.training.sharding import checkpoint_activations
from diffattn.models.attention.cached_attention import chosen_backend
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.ops.backends import custom_op
from diffattn.ops.backends.chunk_layout import GROUP_BYTES
from diffattn.probes.passes import window_inputs

PARTS = (
    "weights", "gradients", "optimizer", "bfloat16 weights",
    "activations", "logits", "working", "communication",
)  # fmt: skip
"""In the order of tables. ``working``: temporary tensors of the backward pass and optimizer."""
FORWARD, LOSS, LAST_BLOCK, FIRST_BLOCK, OPTIMIZER = (
    "forward", "backward of the loss", "backward of the last block",
    "backward of the first block", "optimizer",
)  # fmt: skip
_FLOAT32 = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMemory:
    """Bytes of a step on one device that holds the whole model."""

    phases: Mapping[str, Mapping[str, int]]
    """Phase -> part -> bytes at the phase's peak."""
    block_parameters: int
    root_parameters: int
    """Number of parameters outside the blocks: embeddings and final norm."""
    backend: str

    @property
    def peak(self) -> dict[str, int]:
        """Part -> bytes in the phase that needs most."""
        return largest(self.phases)


def largest(phases: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Part -> bytes of the phase whose sum is largest, in the order of :data:`PARTS`."""
    parts = max(phases.values(), key=lambda phase: sum(phase.values()))
    return {name: parts[name] for name in PARTS if parts.get(name)}


def step_memory(
    config: DiffTransformerConfig,
    train: TrainConfig,
    *,
    sequences: int,
    accumulates: bool,
    device: str,
    checkpointing: bool = False,
    loss_chunk_tokens: int | None = None,
    apart: bool = False,
    elsewhere: bool = False,
    tested: bool = True,
    whole: bool = False,
) -> StepMemory:
    """Run two layers of a step on tensors without values, and extrapolate to all layers.

    Args:
        config: The model. If it has several attention types, all layers count as the type that
            needs most.
        sequences: Sequences of one forward pass on the device.
        accumulates: Whether a step has several passes: then gradients exist during a pass.
        device: ``"cpu"`` or ``"cuda"``.
        apart: Whether documents are kept apart: the sequences are one packed row.
        elsewhere, tested: See :func:`diffattn.models.attention.cached_attention.chosen_backend`.
        whole: Run all layers instead of two, which takes longer and gives the same result.
    """
    dtype = torch.bfloat16 if train.precision == "bfloat16" else torch.float32
    ids = torch.zeros(sequences, train.seq_len, dtype=torch.int64)
    positions = torch.arange(train.seq_len).expand_as(ids) if apart else None
    # The inputs of a pass are made before the fake mode: it could not read the borders.
    rows, steps = window_inputs(ids, positions), []
    for kind, _ in config.by_type():
        backend = chosen_backend(
            kind,
            device=device,
            dtype=dtype,
            batch=sequences,
            num_tokens=train.seq_len,
            apart=apart,
            elsewhere=elsewhere,
            tested=tested,
        )
        ran = kind.num_hidden_layers if whole else min(kind.num_hidden_layers, 2)
        step = _Step(kind, backend, ran, on_gpu=device != "cpu")
        with FakeTensorMode(allow_non_fake_inputs=True), step.live:
            step.run(rows, accumulates, checkpointing, loss_chunk_tokens, dtype)
        steps.append(step.memory(kind.num_hidden_layers - ran))
    return max(steps, key=lambda step: sum(step.peak.values()))


class _Step:
    """One step, which sorts tensors into parts and phases while it runs."""

    def __init__(
        self, config: DiffTransformerConfig, backend: str, layers: int, *, on_gpu: bool
    ) -> None:
        settings = config.settings() | {"num_hidden_layers": layers}
        if isinstance(config.lambda_init, list):
            settings["lambda_init"] = config.lambda_init[:layers]
        self.backend = backend
        self.kernel = backend in ("triton", "hopper")
        settings["attention_backend"] = "auto" if self.kernel else backend
        self.config = DiffTransformerConfig(**settings)
        self.on_gpu = on_gpu
        self.live = LiveBytes(self._sort)
        self.model: Any = None
        self._stage = "weights"
        self._accumulates = False
        self._logits = 0  # tokens whose logits exist at once
        self._around_last_block: list[Counter[str]] = []

    def run(
        self,
        rows: dict[str, Tensor],
        accumulates: bool,
        checkpointing: bool,
        chunk: int | None,
        dtype: torch.dtype,
    ) -> None:
        """Build the model, give the optimizer its state, and run one pass and its step."""
        tokens = rows["input_ids"].numel()
        self._accumulates = accumulates
        self._logits = min(tokens, chunk or tokens)
        self.model = DiffTransformerForCausalLM(self.config).train()
        self.model.loss_chunk_tokens = chunk
        if checkpointing:
            # There is no dropout, so no random state has to be saved.
            options = {"use_reentrant": False, "preserve_rng_state": False}
            checkpoint_activations(self.model, options)
        # One parameter after another, as on a CPU; ``_phases`` adds the temporaries of a GPU.
        optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self._give_gradients()
        self._stage = "optimizer"
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if accumulates:
            self._give_gradients()
        self._watch()
        self._stage = "activations"
        self.live.enter(FORWARD)
        bfloat16 = dtype == torch.bfloat16
        # As in the trainer: no bfloat16 copies are cached if activations are computed again.
        with torch.autocast("cpu", torch.bfloat16, bfloat16, cache_enabled=not checkpointing):
            out = self.model(**rows, labels=rows["input_ids"], use_cache=False)
        if bfloat16 and out.logits is not None:
            out.logits = out.logits.float()  # as accelerate does
        loss = out.loss
        del out
        self._stage = "working"
        self.live.enter(LOSS)
        loss.backward()
        self._stage = "step"
        self.live.enter(OPTIMIZER)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=False)
        optimizer.step()
        del optimizer

    def _give_gradients(self) -> None:
        self._stage = "gradients"
        for parameter in self.model.parameters():
            parameter.grad = torch.empty_like(parameter)

    def _watch(self) -> None:
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: self.live.move(p.grad, "gradients")
            )
        blocks = list(self.model.model.layers)
        for number, block in enumerate(blocks):
            phase = LAST_BLOCK if number == len(blocks) - 1 else FIRST_BLOCK
            if number in (0, len(blocks) - 1):
                block.register_forward_hook(partial(self._after_block, phase))
            if self.kernel:
                block.self_attn.register_forward_pre_hook(_with_kernel, with_kwargs=True)
        for module in (blocks[-1], self.model.model.norm):
            module.register_forward_pre_hook(self._between_blocks)

    def _after_block(self, phase: str, block: Any, inputs: Any, output: Tensor) -> None:
        if self._stage == "activations":  # not when the block is computed again
            output.register_hook(lambda grad: self.live.enter(phase))

    def _between_blocks(self, module: Any, inputs: Any) -> None:
        if self._stage == "activations":
            self._around_last_block.append(self.live.now.copy())

    def _sort(self, func: Any, args: tuple[Any, ...], tensor: Tensor) -> str:
        if self._stage in ("weights", "optimizer", "gradients"):
            return self._stage
        vocabulary = self.config.vocab_size
        if tensor.shape == (vocabulary, self.config.hidden_size) and tensor.dtype == torch.float32:
            return "gradients" if self._stage == "working" else "activations"
        if tensor.shape[-1:] == (vocabulary,) and tensor.numel() == self._logits * vocabulary:
            return "logits"
        if func is torch.ops.aten._to_copy.default and self.live.part_of(args[0]) == "weights":
            return "bfloat16 weights"
        return "working" if self._stage == "step" else self._stage

    def memory(self, more_layers: int) -> StepMemory:
        """The result for a model with more layers than were run."""
        block = sum(p.numel() for p in self.model.model.layers[0].parameters())
        all_blocks = len(self.model.model.layers) * block
        return StepMemory(
            phases=self._phases(more_layers, block),
            block_parameters=block,
            root_parameters=sum(p.numel() for p in self.model.parameters()) - all_blocks,
            backend=self.backend,
        )

    def _phases(self, more_layers: int, block: int) -> dict[str, Counter[str]]:
        phases = {name: Counter(parts) for name, parts in self.live.peaks.items() if name}
        if self.backend == "chunked":  # its buffers are not counted above
            for name in phases.keys() - {OPTIMIZER}:
                phases[name]["working"] += GROUP_BYTES
        if self.on_gpu:  # the square roots of all second moments at once
            working = sum(p.numel() for p in self.model.parameters()) * _FLOAT32
            phases[OPTIMIZER]["working"] = working
        if not more_layers:
            return phases
        before, after = self._around_last_block
        # Attention maps with as many elements as the logits are counted as logits: keep them too.
        kept = {x: after[x] - before[x] for x in ("activations", "bfloat16 weights", "logits")}
        for name, parts in phases.items():
            is_before_first_block = name in (FORWARD, LOSS, LAST_BLOCK)
            has_gradients = self._accumulates or not is_before_first_block
            growth = {
                "weights": _FLOAT32 * block,
                "optimizer": 2 * _FLOAT32 * block,
                "gradients": _FLOAT32 * block if has_gradients else 0,
                "working": _FLOAT32 * block if self.on_gpu and name == OPTIMIZER else 0,
                **(kept if is_before_first_block else {}),
            }
            for part, size in growth.items():
                parts[part] += more_layers * size
        return phases


def _with_kernel(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Have a layer call the kernels' operator. With fake tensors it needs no GPU."""

    def attend(q: Tensor, k: Tensor, v: Tensor, lam: Tensor | None = None) -> Tensor:
        scale = layer.head_dim**-0.5
        if lam is None:
            return custom_op.softmax_attention(q, k, v, scale=scale)
        return custom_op.diff_attention(q, k, v, lam, scale=scale)

    return args, kwargs | {"attend": attend}


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages made in the context, by part, now and at the peak of each phase.

    Memory that an operator uses and frees inside is not counted. ``sort`` names the part for a new
    tensor, from an operator, its arguments and the tensor.
    """

    def __init__(self, sort: Callable[[Any, tuple[Any, ...], Tensor], str]) -> None:
        super().__init__()
        self.now: Counter[str] = Counter()
        """Bytes alive, by part."""
        self.peaks: dict[str, dict[str, int]] = {}
        """Phase -> part -> bytes, at the moment when the phase's sum was largest."""
        self._sort = sort
        self._phase = ""
        self._most = -1
        self._alive: dict[int, tuple[weakref.ref[Any], str, int]] = {}

    def enter(self, phase: str) -> None:
        """Begin a phase. Tensors that are alive already count in it."""
        self._phase, self._most = phase, -1
        self._note()

    def part_of(self, tensor: Tensor) -> str | None:
        """The part of a tensor's storage; ``None`` if it was made outside the context."""
        entry = self._alive.get(_key(tensor))
        return entry[1] if entry else None

    def move(self, tensor: Tensor, part: str) -> None:
        """Move a tensor's storage to another part."""
        if (entry := self._alive.get(_key(tensor))) is not None:
            reference, before, size = entry
            self._alive[_key(tensor)] = (reference, part, size)
            self.now[before] -= size
            self.now[part] += size

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator and count its outputs."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor) and _key(tensor) not in self._alive:
                self._add(func, args, tensor)
        return out

    def _add(self, func: Any, args: tuple[Any, ...], tensor: Tensor) -> None:
        key, storage = _key(tensor), tensor.untyped_storage()
        part, size = self._sort(func, args, tensor), storage.nbytes()

        def gone(_: Any) -> None:
            _, now_part, _ = self._alive.pop(key)
            self.now[now_part] -= size

        self._alive[key] = (weakref.ref(storage, gone), part, size)
        self.now[part] += size
        self._note()

    def _note(self) -> None:
        total = sum(self.now.values())
        if total > self._most:
            self._most = total
            self.peaks[self._phase] = {part: size for part, size in self.now.items() if size}


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
