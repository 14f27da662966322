"""Differential attention in PyTorch's own distributed code: FSDP2 and tensor parallelism.

The layers are plain modules, so ``fully_shard`` takes a block as its unit, and a tensor-parallel
plan splits projections by rows or columns. Rows of ``q_proj`` lie head by head, both maps of a head
side by side: a split by heads leaves every subtraction on one device.

    torchrun --nproc-per-node 2 examples/sharded.py fsdp
    torchrun --nproc-per-node 2 examples/sharded.py tensor

Expected, on each: losses of every step equal to one process with the whole model, to rounding.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from diffattn import DiffAttentionV2, rotary_embedding

VOCAB, WIDTH, HEADS, LENGTH, ROWS, STEPS = 128, 64, 4, 32, 4, 3
PLAN = {
    "attention.q_proj": ColwiseParallel,
    "attention.k_proj": ColwiseParallel,
    "attention.v_proj": ColwiseParallel,
    "attention.lambda_proj": ColwiseParallel,  # one λ per head
    "attention.o_proj": RowwiseParallel,
    "up": ColwiseParallel,
    "down": RowwiseParallel,
}


class Block(nn.Module):
    """Pre-norm block."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = DiffAttentionV2(WIDTH, HEADS, WIDTH // HEADS, layer_idx=layer_idx)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Of ``[B, T, WIDTH]``."""
        x = x + self.attention(self.norm1(x), positions)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Two blocks between an embedding and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.blocks = nn.ModuleList(Block(i) for i in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        """Mean loss in nats per token of ids ``[B, T + 1]``."""
        x = self.embed(ids[:, :-1])
        positions = rotary_embedding(torch.arange(x.shape[1], device=x.device), WIDTH // HEADS)
        for block in self.blocks:
            x = block(x, positions)
        return F.cross_entropy(self.head(x).flatten(0, 1), ids[:, 1:].flatten())


def train(model: nn.Module, batches: list[Tensor]) -> list[float]:
    """Losses over a few steps; every process reads the batches it is given."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    losses = []
    for batch in batches:
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def main(arguments: list[str] | None = None) -> None:
    """Train a whole and a split model, and compare their losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("how", choices=("fsdp", "tensor"))
    how = parser.parse_args(arguments).how
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{rank}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    batches = [torch.randint(VOCAB, (ROWS, LENGTH + 1)).to(device) for _ in range(STEPS)]
    whole, split = Decoder().to(device), Decoder().to(device)
    split.load_state_dict(whole.state_dict())
    expected = train(whole, batches)
    mesh = init_device_mesh(device.partition(":")[0], (processes,))
    if how == "fsdp":
        for block in split.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(split, mesh=mesh)
        losses = train(split, [batch.chunk(processes)[rank] for batch in batches])
        means = torch.tensor(losses, device=device)
        dist.all_reduce(means)  # every process has the loss of its own rows
        losses = (means / processes).tolist()
    else:
        for block in split.blocks:
            parallelize_module(block, mesh, {name: style() for name, style in PLAN.items()})
        losses = train(split, batches)
    weight = split.blocks[0].attention.q_proj.weight
    if rank == 0:
        print(f"{how}: q_proj {list(weight.shape)}, here {list(weight.to_local().shape)}")
        for step, (one, many) in enumerate(zip(expected, losses, strict=True)):
            print(f"step {step}: whole {one:.6f}, split {many:.6f}")
    worst = max(abs(a - b) / a for a, b in zip(expected, losses, strict=True))
    dist.destroy_process_group()
    if worst > 1e-5:
        raise SystemExit(f"{how}: losses must agree, got a relative difference of {worst:.1e}.")


if __name__ == "__main__":
    main()
