#!/usr/bin/python3
"""Trains a small character-level transformer on the text of the GPL with DistributedDataParallel.

Started once per rank with torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT); ADDEND_SOCKET names the node's agent. For example, on a machine without
running services, or with an agent that serves two ranks:

    PYTHONPATH=python /usr/bin/python3 -m addend run -n 2 -- examples/train_char_transformer.py

    PYTHONPATH=python ADDEND_SOCKET=/run/addend/agent.sock \\
        torchrun --nproc_per_node=2 examples/train_char_transformer.py --steps=200

The three lines that matter for Addend are marked. Everything is deterministic: the same number of
ranks and steps gives the same weights, bit for bit, whichever servers sum the gradients.
"""

import argparse
import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch

TEXT = "/usr/share/common-licenses/GPL-3"
CONTEXT = 64
WIDTH = 128
HEADS = 4
LAYERS = 2
BATCH = 4


class Block(nn.Module):
    """Attention to earlier characters, then a small network; both added to their input."""

    def __init__(self):
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_network = nn.LayerNorm(WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self._future = torch.ones(CONTEXT, CONTEXT).triu(1).bool()

    def attend(self, x):
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = heads[0], heads[1], heads[2]
        scores = q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5
        scores = scores.masked_fill(self._future[:length, :length].to(x.device), float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.project(mixed.transpose(1, 2).reshape(batch, length, WIDTH))

    def forward(self, x):
        x = x + self.attend(self.norm_attention(x))
        return x + self.network(self.norm_network(x))


class CharTransformer(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.token = nn.Embedding(characters, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def load_text():
    with open(TEXT, encoding="utf-8") as file:
        text = file.read()
    characters = sorted(set(text))
    number = {c: i for i, c in enumerate(characters)}
    return torch.tensor([number[c] for c in text]), len(characters)


class Batches:
    """Random pieces of the text; every rank draws its own, and the same in every run."""

    def __init__(self, text, rank):
        self._text = text
        self._generator = torch.Generator().manual_seed(1000 + rank)

    def next(self):
        last = len(self._text) - CONTEXT - 1
        starts = torch.randint(last, (BATCH,), generator=self._generator).tolist()
        inputs = torch.stack([self._text[s : s + CONTEXT] for s in starts])
        targets = torch.stack([self._text[s + 1 : s + CONTEXT + 1] for s in starts])
        return inputs, targets


def reference_hook(local_size):
    """Averages by gathering all gradients on every rank and adding them in Addend's order.

    A node's ranks are added first, then the nodes. It computes the expected bits, at the price of
    sending all gradients to all ranks.
    """

    def add(tensors):
        total = tensors[0]
        for other in tensors[1:]:
            total = total + other
        return total

    def hook(_, bucket):
        gathered = [torch.empty_like(bucket.buffer()) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, bucket.buffer())
        nodes = range(0, len(gathered), local_size)
        total = add([add(gathered[first : first + local_size]) for first in nodes])
        future = torch.futures.Future()
        future.set_result(total / dist.get_world_size())
        return future

    return hook


def make_model(characters, reduce, bucket_cap_mb=0.2):
    torch.manual_seed(7)
    model = DistributedDataParallel(CharTransformer(characters), bucket_cap_mb=bucket_cap_mb)
    if reduce == "addend":
        model.register_comm_hook(addend.torch.HookState(model), addend.torch.ddp_comm_hook)  # (2)
    elif reduce == "reference":
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        model.register_comm_hook(None, reference_hook(local_size))
    return model


def compiled(model):
    """The model, compiled as far as that needs no C++ compiler on this machine."""
    return torch.compile(model, backend="aot_eager")


def weights_checksum(model):
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Reporter:
    """Rank 0's files: a JSON line per step, and the checksum of the weights. Without them it prints."""

    def __init__(self, options, rank):
        self._checksum_file = options.checksum_file if rank == 0 else None
        path = options.progress_file if rank == 0 else None
        self._progress = open(path, "w", encoding="utf-8") if path else None
        self._prints = rank == 0 and path is None
        self._last = time.monotonic()

    def step(self, step, loss):
        now = time.monotonic()
        rate, self._last = 1 / max(now - self._last, 1e-9), now
        if self._progress:
            line = {"step": step, "loss": round(loss, 5), "steps_per_s": round(rate, 3)}
            print(json.dumps(line), file=self._progress, flush=True)
        if self._prints and step % 10 == 0:
            print("step %d: loss %.4f" % (step, loss), flush=True)

    def checksum(self, step, model):
        if self._checksum_file:
            path = self._checksum_file if step is None else "%s.%d" % (self._checksum_file, step)
            with open(path, "w", encoding="utf-8") as file:
                file.write(weights_checksum(model) + "\n")
        elif self._prints and step is None:
            print("SHA-256 of the weights:", weights_checksum(model), flush=True)


def train(options):
    text, characters = load_text()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    batches = Batches(text, rank)
    if options.compile:  # which refuses buckets that are smaller than DDP's first, of 1 MB
        model = make_model(characters, options.reduce, bucket_cap_mb=1)
        forward = compiled(model)
    else:
        model = forward = make_model(characters, options.reduce)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    reporter = Reporter(options, rank)
    for step in range(1, options.steps + 1):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        reporter.step(step, mean.item() / world_size)
        if step == options.checkpoint_step:
            reporter.checksum(step, model.module)
    reporter.checksum(None, model.module)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument(
        "--reduce",
        choices=("addend", "backend", "gloo", "reference"),
        default="addend",
        help="who averages the gradients: Addend as DDP's hook or as its process group, Gloo, or a "
        "reference that adds them in rank order on every rank",
    )
    parser.add_argument("--compile", action="store_true", help="use torch.compile (PyTorch 2)")
    parser.add_argument("--progress-file", help="rank 0 writes a JSON line per step")
    parser.add_argument("--checksum-file", help="rank 0 writes the SHA-256 of the final weights")
    parser.add_argument(
        "--checkpoint-step",
        type=int,
        help="rank 0 also writes the checksum after this step, to CHECKSUM_FILE.STEP",
    )
    return parser.parse_args()


def main():
    options = parse_options()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # DDP needs a process group for its own construction. With "addend" it needs no hook.
    dist.init_process_group("addend" if options.reduce == "backend" else "gloo")
    if options.reduce == "addend":
        addend.torch.init()  # (1)
    train(options)
    if options.reduce == "addend":
        addend.torch.shutdown()  # (3)
    # Gloo's threads may still hold the tensor of the last sum. PyTorch 2.6 aborts a process that
    # ends before they let go, and DistributedDataParallel keeps them alive: they are given time.
    dist.barrier()
    time.sleep(0.5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
