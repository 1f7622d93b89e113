#!/usr/bin/python3
"""DiLoCo: every rank trains alone for H steps, then the ranks make an outer step together.

    PYTHONPATH=python /usr/bin/python3 -m addend run --nodes 4 examples/diloco.py

The ranks meet once in H steps, so the traffic is H times less than that of data parallelism. They
average their progress, start - end, in place of a gradient; the outer optimizer is SGD
with Nesterov momentum (Douillard et al., "DiLoCo", 2023). With --outer-lr=1 --outer-momentum=0 it is
local SGD: the plain average of the models.
"""

import argparse

import torch
from torch import nn
from train_char_transformer import Batches, CharTransformer, load_text, weights_checksum

import addend.torch


class OuterStep:
    """The model where the ranks last agreed, and the optimizer that moves it."""

    def __init__(self, model, lr, momentum):
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters = list(model.parameters())
        self._agreed = [p.detach().clone() for p in self._parameters]
        self._optimizer = torch.optim.SGD(self._agreed, lr=lr, momentum=momentum, nesterov=momentum > 0)

    @torch.no_grad()
    def step(self):
        """Moves the agreed model by the average of all ranks' progress, and sets the rank's model to it."""
        started = [
            addend.torch.allreduce_async(agreed - p, name="outer/" + name)
            for name, agreed, p in zip(self._names, self._agreed, self._parameters)
        ]
        for agreed, handle in zip(self._agreed, started):
            agreed.grad = addend.torch.synchronize(handle)
        self._optimizer.step()
        for agreed, p in zip(self._agreed, self._parameters):
            p.copy_(agreed)


def train_alone(model, optimizer, batches, steps):
    """Makes `steps` inner steps; returns the mean loss."""
    total = 0.0
    for _ in range(steps):
        inputs, targets = batches.next()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--outer-steps", type=int, default=20)
    parser.add_argument("--inner-steps", type=int, default=10, help="H, the inner steps per outer step")
    parser.add_argument("--inner-lr", type=float, default=3e-3)
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9)
    return parser.parse_args()


def main():
    options = parse_options()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    addend.torch.init()
    rank = addend.torch.rank()
    text, characters = load_text()
    torch.manual_seed(7)
    model = CharTransformer(characters)
    addend.torch.broadcast_parameters(model.state_dict())
    inner = torch.optim.AdamW(model.parameters(), lr=options.inner_lr)  # its state stays with the rank
    outer = OuterStep(model, options.outer_lr, options.outer_momentum)
    batches = Batches(text, rank)
    for step in range(1, options.outer_steps + 1):
        loss = train_alone(model, inner, batches, options.inner_steps)
        outer.step()
        loss = addend.torch.allreduce(torch.tensor(loss), name="loss").item()
        if rank == 0:
            print("outer step %d: loss %.4f" % (step, loss), flush=True)
    print("checksum", weights_checksum(model), flush=True)
    addend.torch.shutdown()


if __name__ == "__main__":
    main()
