"""PyTorch with DistributedDataParallel over gloo, in an environment with PyTorch and NumPy only.

Run as a program. It trains the same shapes as `problems`, in a process of one thread for each
core, and prints the samples per second of all of them together.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn

from side_by_side.problems import PROBLEMS, SEED

_WARM_UP = 10
_LENGTH, _VOCABULARY, _WIDTH, _HEADS = 64, 1000, 192, 4


class Attention(nn.Module):
    """A transformer's block, with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
        self.inner, self.outer = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
        mask = torch.full((_LENGTH, _LENGTH), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm(x)
        x = x + self.attention(seen, seen, seen, attn_mask=self.mask, need_weights=False)[0]
        return x + self.outer(nn.functional.gelu(self.inner(self.inner_norm(x))))


class LanguageModel(nn.Module):
    """Tokens, positions, two blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        self.positions = nn.Parameter(torch.rand(_LENGTH, _WIDTH))
        self.blocks = nn.Sequential(Attention(), Attention())
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.embedding(tokens) * self.positions)
        return self.head(self.norm(x))


def _mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for width in (784, 1024, 1024, 1024):
        layers += [nn.Linear(width, 1024), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def _cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, filters in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


MODELS = {"mlp": _mlp, "cnn": _cnn, "transformer": LanguageModel}


def train(
    rank: int, name: str, batch_size: int, cores: list[int], seconds: float, answer: Any
) -> None:
    """Train on one core, as one of several processes; the first answers."""
    os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    problem, count = PROBLEMS[name], len(cores)
    if batch_size:
        problem = dataclasses.replace(problem, batch_size=batch_size)
    each = problem.batch_size // count
    x, y = problem.data(np.random.default_rng(SEED + rank), each * problem.num_batches)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y).long()
    if name == "cnn":
        inputs = inputs.permute(0, 3, 1, 2).contiguous()
    model = MODELS[name]()
    if count > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
        torch.distributed.init_process_group("gloo", rank=rank, world_size=count)
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters())

    def step(number: int) -> None:
        begin = number % problem.num_batches * each
        scores = model(inputs[begin : begin + each])
        wanted = targets[begin : begin + each].reshape(-1)
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(scores.reshape(len(wanted), -1), wanted).backward()
        optimizer.step()

    for number in range(_WARM_UP):
        step(number)
    began = time.perf_counter()
    step(0)
    # All processes have to take the same number of steps.
    num_steps = torch.tensor(max(8, round(seconds / (time.perf_counter() - began))))
    if count > 1:
        torch.distributed.broadcast(num_steps, 0)
    began = time.perf_counter()
    for number in range(int(num_steps)):
        step(number)
    if count > 1:
        torch.distributed.barrier()
    taken = time.perf_counter() - began
    if rank == 0:
        answer.put(problem.batch_size * int(num_steps) / taken)


def main(name: str, num_devices: int, seconds: float, batch_size: int = 0) -> None:
    """Print ``{"samples_per_second": ...}``.

    Args:
        name: Name of the problem.
        num_devices: Number of processes, each on a core of its own.
        seconds: Seconds to train.
        batch_size: Samples of all processes together; 0 for those of the problem.
    """
    cores = sorted(os.sched_getaffinity(0))[:num_devices]
    answer = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(
        train, (name, batch_size, cores, seconds, answer), nprocs=num_devices
    )
    print(json.dumps({"samples_per_second": answer.get()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))
