"""A small training job for asynchronous mode, and the same job with a plain parameter server."""
import hashlib

import torch


class Worker:
    """A rank's model, optimizer and data. `distribute` makes the optimizer asynchronous; None leaves it plain."""

    def __init__(self, rank, distribute=None):
        torch.set_num_threads(1)
        torch.manual_seed(17 if distribute is None else rank)  # all ranks receive rank 0's weights
        self.model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 1))
        if rank == 0:
            self.load(initial())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        if distribute is not None:
            self.optimizer = distribute(self.optimizer, self.model.named_parameters())
        self.data = torch.Generator().manual_seed(100 + rank)

    def load(self, values):
        with torch.no_grad():
            for parameter, value in zip(self.model.parameters(), values):
                parameter.copy_(value)

    def values(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def step(self):
        """Makes a step on this rank's own data; returns its loss."""
        inputs = torch.rand(16, 20, generator=self.data)
        loss = (self.model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def digest(self):
        return digest(self.values())


def initial():
    generator = torch.Generator().manual_seed(5)
    return [torch.rand(shape, generator=generator) / 10 for shape in ((300, 20), (300,), (1, 300), (1,))]


def digest(values):
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()


def with_parameter_server(order):
    """The digests of a plain asynchronous parameter server's parameters after each step."""
    latest = initial()
    workers = {rank: Worker(rank) for rank in set(order)}
    for worker in workers.values():
        worker.load(latest)
    digests = []
    for rank in order:
        worker = workers[rank]
        before = worker.values()
        worker.step()
        latest = [value + (after - old) for value, after, old in zip(latest, worker.values(), before)]
        worker.load(latest)
        digests.append(digest(latest))
    return digests
