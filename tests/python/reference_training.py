"""A small model, and the expected weights of its training on several ranks, bit for bit."""

import torch

import addend.torch as hvd


class Net(torch.nn.Module):
    """A model in which a parameter never has a gradient, a parameter has a gradient on a single rank, a parameter is frozen and a parameter is used
    twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.first = torch.nn.Linear(6, 8)
        self.again = torch.nn.Linear(8, 8)
        self.odd = torch.nn.Linear(8, 3)
        self.even = torch.nn.Linear(8, 3)
        self.never = torch.nn.Parameter(torch.ones(2))
        self.frozen = torch.nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x, rank):
        x = torch.tanh(self.again(torch.tanh(self.again(self.first(x)))) * self.frozen)
        return (self.odd if rank % 2 else self.even)(x)


def loss_of(model, rank, batch):
    generator = torch.Generator().manual_seed(1000 * rank + batch)
    return model(torch.rand(4, 6, generator=generator), rank).square().mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def mean(total, ranks):
    return total / ranks


def reference(make, steps=4, passes=1, steps_of=lambda rank: 10**6, between=None, total=mean):
    """The weights when all ranks' gradients are added in the order of the ranks, in a single process.

    Rank r takes part in the first steps_of(r) steps. `between`: is given the gradients before the step.
    """
    model = Net()
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(steps):
        sums = {}
        for rank in range(hvd.size()):
            model.zero_grad(set_to_none=True)
            for i in range(passes) if step < steps_of(rank) else ():
                loss_of(model, rank, step * passes + i).backward()
            for p in model.parameters():
                if p.grad is not None:
                    sums[p] = p.grad + sums[p] if p in sums else p.grad
        for p in model.parameters():
            if p.requires_grad:
                p.grad = total(sums[p], hvd.size()) if p in sums else torch.zeros_like(p)
        if between is not None:
            between([p.grad for p in model.parameters() if p.requires_grad])
        optimizer.step()
        scheduler.step()
    return weights(model)


class HalfOfIt:
    """A user's own compressor, by Horovod's protocol."""

    @staticmethod
    def compress(tensor):
        return tensor.flatten().double() / 2, tensor.shape

    @staticmethod
    def decompress(tensor, context):
        return (tensor * 2).float().reshape(context)
