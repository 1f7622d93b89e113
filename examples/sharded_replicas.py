#!/usr/bin/python3
"""Shards the optimizer inside each node, and replicates the shards over the nodes with Addend.

    PYTHONPATH=python /usr/bin/python3 -m addend run --nodes 2 -n 2 examples/sharded_replicas.py

A step, for L ranks on a node (the first stage of ZeRO, with Addend between the nodes):
  1. the node's ranks reduce their gradients among themselves: each gets the mean of its own slice;
  2. Addend averages each slice over the nodes: every slice leaves the node once, not L times;
  3. each rank updates its slice of the parameters, and keeps an L-th of the optimizer's state;
  4. the node's ranks gather the updated slices.
Inside a node this uses gloo; with NCCL, reduce_scatter takes the place of the L reductions. For
PyTorch's own sharding see hsdp.py.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from train_char_transformer import Batches, CharTransformer, load_text, weights_checksum

import addend.torch


def group_of_this_node():
    """The process group of this node's ranks; every rank has to create all groups."""
    ranks = addend.torch.local_size()
    groups = [
        dist.new_group(list(range(first, first + ranks))) for first in range(0, dist.get_world_size(), ranks)
    ]
    return groups[addend.torch.node_rank()]


class ShardedOptimizer:
    """AdamW of a slice of all parameters, which lie in a flat tensor."""

    def __init__(self, model, lr):
        self._parameters = list(model.parameters())
        self._group = group_of_this_node()
        self._ranks, self._own = addend.torch.local_size(), addend.torch.local_rank()
        elements = sum(p.numel() for p in self._parameters)
        self._length = -(-elements // self._ranks)  # of a slice; the last slice is padded with zeros
        self._flat = torch.zeros(self._length * self._ranks)
        self._gradient = torch.zeros_like(self._flat)
        self._copy(lambda p, place: place.copy_(p.detach().flatten()), self._flat)
        self._slice = self._slices(self._flat)[self._own].clone().requires_grad_()
        self._optimizer = torch.optim.AdamW([self._slice], lr=lr)

    def _copy(self, between, flat):
        start = 0
        for p in self._parameters:
            between(p, flat[start : start + p.numel()])
            start += p.numel()

    def _slices(self, flat):
        return list(flat.split(self._length))

    def zero_grad(self):
        for p in self._parameters:
            p.grad = None

    def step(self):
        self._copy(lambda p, place: place.copy_(p.grad.flatten()), self._gradient)
        self._slice.grad = self._mean_of_own_slice()
        self._optimizer.step()
        dist.all_gather(self._slices(self._flat), self._slice.detach(), group=self._group)
        with torch.no_grad():
            self._copy(lambda p, place: p.copy_(place.view_as(p)), self._flat)

    def _mean_of_own_slice(self):
        slices = self._slices(self._gradient)
        first = dist.get_rank() - self._own
        for i, piece in enumerate(slices):
            dist.reduce(piece, first + i, group=self._group)
        own = slices[self._own] / self._ranks
        return addend.torch.allreduce_replicas_(own, "gradients")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=3e-3)
    return parser.parse_args()


def main():
    options = parse_options()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    addend.torch.init()
    text, characters = load_text()
    torch.manual_seed(7)
    model = CharTransformer(characters)
    optimizer = ShardedOptimizer(model, options.lr)
    batches = Batches(text, dist.get_rank())
    for step in range(1, options.steps + 1):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        mean = addend.torch.allreduce(loss.detach(), name="loss").item()
        if dist.get_rank() == 0:
            print("step %d: loss %.4f" % (step, mean), flush=True)
    print("checksum", weights_checksum(model), flush=True)
    addend.torch.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
