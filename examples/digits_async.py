#!/usr/bin/python3
"""Learns handwritten digits asynchronously: every rank at its own speed, no rank waits for another node.

    PYTHONPATH=python /usr/bin/python3 -m addend run --nodes 3 examples/digits_async.py

The servers keep the latest parameters. A step sends its changes and takes the latest parameters,
which have the changes of all ranks so far. With --slow-rank a rank makes its steps more slowly, and
the others make more of them: the ranks go on until they have made --steps together.
"""

import argparse
import time

import torch
from digits_horovod import Net, load_data, test
from torch import nn
from torch.utils.data import DataLoader

import addend.torch


def steps_together(made):
    """The number of steps that all ranks have made so far, this rank's included."""
    return int(addend.torch.allreduce(torch.tensor([made]), name="steps", op=addend.torch.Accumulate))


def endless(loader):
    while True:
        yield from loader


def train(model, optimizer, batches, options, slow):
    """Trains until all ranks together have made the steps; returns the number of this rank's steps."""
    made, together = 0, 0
    while together < options.steps:
        images, labels = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        made += 1
        together = steps_together(1)
        if slow:
            time.sleep(options.slow_by)
    return made


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=900, help="number of steps of all ranks together")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--slow-rank", type=int, help="a rank that makes its steps more slowly")
    parser.add_argument("--slow-by", type=float, default=0.1, help="seconds by which each step of the slow rank is longer")
    return parser.parse_args()


def main():
    options = parse_options()
    addend.torch.init()
    rank = addend.torch.rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    learn, tests = load_data()
    batches = endless(DataLoader(learn, batch_size=options.batch_size, shuffle=True))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.5)
    optimizer = addend.torch.AsyncOptimizer(optimizer, named_parameters=model.named_parameters())
    made = train(model, optimizer, batches, options, rank == options.slow_rank)

    addend.torch.barrier()  # all changes are there
    optimizer.zero_grad(set_to_none=True)
    optimizer.step()  # changes nothing, and takes the latest parameters: the same on all ranks
    _, accuracy = test(model, DataLoader(tests, batch_size=100))
    print("%d steps, accuracy %.4f" % (made, accuracy), flush=True)
    addend.torch.shutdown()


if __name__ == "__main__":
    main()
