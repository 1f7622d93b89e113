#!/usr/bin/python3
"""Training that a batch system may stop at any moment and start again: it resumes from its checkpoint.

    PYTHONPATH=python python3 -m addend run -n 2 examples/resumable.py --checkpoint=/tmp/resumable.pt

SIGTERM, which Slurm sends before it preempts a job, makes all ranks stop after the same step, and rank 0
writes the checkpoint. The weights of a run that was stopped have the bits of one that was not.
"""

import argparse
import os
import signal
import time

import torch
from train_char_transformer import weights_checksum

import addend.torch as hvd

_stop = []


def make_model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))


def batch(step):
    """Of this rank: a function of the step, so that a resumed run has the data of the first."""
    data = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + hvd.rank()))
    return data, data[:, :4].prod(1, keepdim=True)


def save(path, step, model, optimizer):
    """Whole or not at all: a process may be killed while it writes."""
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
    os.replace(path + ".new", path)


def train(options):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    first = 0
    if hvd.rank() == 0 and os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint)
        first = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        print("resuming after step %d" % first, flush=True)
    first = hvd.broadcast_object(first)
    hvd.broadcast_parameters(model.state_dict())
    hvd.broadcast_optimizer_state(optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    for step in range(first + 1, options.steps + 1):
        data, target = batch(step)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()
        time.sleep(options.pause)
        # A signal may reach a rank before the others: all stop after the same step.
        stop = hvd.allreduce(torch.tensor([len(_stop)]), name="stop", op=hvd.Max).item() > 0
        if hvd.rank() == 0 and (stop or step % options.every == 0 or step == options.steps):
            save(options.checkpoint, step, model, optimizer)
        if stop and step < options.steps:
            if hvd.rank() == 0:
                print("stopped after step %d" % step, flush=True)
            return
    if hvd.rank() == 0:
        print("SHA-256 of the weights:", weights_checksum(model), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--checkpoint", required=True, help="rank 0's file")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: _stop.append(1))
    hvd.init()
    train(options)
    hvd.shutdown()


main()
