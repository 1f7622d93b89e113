#!/usr/bin/python3
"""Hybrid sharded data parallelism: FSDP2 shards the model inside a node, Addend joins the nodes.

    PYTHONPATH=python python3 -m addend run --nodes 2 -n 2 examples/hsdp.py

Needs PyTorch 2.7, whose FSDPModule has set_all_reduce_hook; ends with status 77 where that is
missing. Gradients that FSDP has reduced and scattered over the ranks of a node are averaged over the
nodes, shard by shard: each leaves a node once. With --by=hook FSDP knows the ranks of its node only, and
calls Addend; with --by=mesh FSDP has a mesh of two dimensions, whose backend is Addend: GPU tensors are
then copied to host memory first.
"""

import argparse
import sys

import torch
import torch.distributed as dist
from torch import nn
from train_char_transformer import Batches, load_text

import addend.torch

try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard
except ImportError:
    FSDPModule = None

_CANNOT_RUN = 77
WIDTH = 128
BLOCKS = 3


def make_model(characters):
    """Predicts each character from the character before it: small, and for any device."""
    torch.manual_seed(7)  # the same on all ranks, before it is sharded
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        for _ in range(BLOCKS)
    ]
    return nn.Sequential(nn.Embedding(characters, WIDTH), *blocks, nn.Linear(WIDTH, characters))


def sharded(model, device, by):
    nodes, ranks = addend.torch.num_nodes(), addend.torch.local_size()
    mesh = init_device_mesh(device, (nodes, ranks), mesh_dim_names=("replicate", "shard"))
    if by == "hook":
        mesh = mesh["shard"]  # the ranks of this node only: FSDP itself must not join the nodes
    for part in model:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if by == "hook" and isinstance(module, FSDPModule):
            module.set_all_reduce_hook(addend.torch.replica_hook(module))
    return model


def train(options, device):
    text, characters = load_text()
    model = sharded(make_model(characters).to(device), device, options.by)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    batches = Batches(text, dist.get_rank())
    for step in range(1, options.steps + 1):
        inputs, targets = [tensor.to(device) for tensor in batches.next()]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        mean = addend.torch.allreduce(loss.detach(), name="loss").item()
        if dist.get_rank() == 0:
            print("step %d: loss %.4f" % (step, mean), flush=True)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--by", choices=("hook", "mesh"), default="hook", help="how FSDP reaches Addend")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=3e-3)
    return parser.parse_args()


def main():
    options = parse_options()
    if not hasattr(FSDPModule, "set_all_reduce_hook"):
        print(
            "hsdp.py: PyTorch %s has no FSDPModule.set_all_reduce_hook; it needs PyTorch 2.7 or newer"
            % torch.__version__,
            file=sys.stderr,
        )
        return _CANNOT_RUN
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.by == "mesh":
        dist.init_process_group("addend")
    else:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        addend.torch.init()
    if device == "cuda":
        torch.cuda.set_device(addend.torch.local_rank())
    train(options, device)
    if options.by == "hook":
        addend.torch.shutdown()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
