"""Ranks that train a small model with DistributedDataParallel and a compression scheme."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import addend.torch
from addend.torch.compression import CoarseSparse, OneBit, RandomK, TopK
from tests.support.ports import free_port
from tests.support.torch_ranks import gathered

RANKS = 2
COMPRESSIONS = {
    "none": lambda: addend.torch.Compression.none,
    "fp16": lambda: addend.torch.Compression.fp16,
    "bf16": lambda: addend.torch.Compression.bf16,
    "one bit": OneBit,
    "top k": lambda: TopK(0.1),
    "random k": lambda: RandomK(0.2),
    "coarse sparse": lambda: CoarseSparse(density=0.2, chunk_elements=16, warm_up_steps=3),
}
SCHEMES = ("one bit", "top k", "random k", "coarse sparse")


def run(agent, body, **extra):
    return agent.run_ranks(body, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **extra)


def start():
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 2000  # by default the small models would fit into a single bucket
    dist.init_process_group("gloo")
    addend.torch.init()


def stop():
    addend.torch.shutdown()
    dist.destroy_process_group()


class Network(torch.nn.Module):
    """A model with a part that only some passes use."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(10, 40)
        self.second = torch.nn.Linear(40, 40)
        self.sometimes = torch.nn.Linear(40, 40)
        self.last = torch.nn.Linear(40, 2)

    def forward(self, x, detour=False):
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.last(torch.relu(self.sometimes(x)) if detour else x)


def make(name, hook=addend.torch.ddp_comm_hook, **options):
    """(model, its state, an optimizer), the same on all ranks."""
    torch.manual_seed(2)
    model = DistributedDataParallel(Network(), bucket_cap_mb=0.005, **options)
    state = addend.torch.HookState(model, COMPRESSIONS[name]())
    model.register_comm_hook(state, hook)
    return model, state, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def inputs(step):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.rand(8, 10, generator=generator)


def loss_of(model, step, **options):
    return (model(inputs(step), **options) - 1).square().mean()


def step_with(model, state, optimizer, step, **options):
    optimizer.zero_grad()
    loss = loss_of(model, step, **options)
    loss.backward()
    with state.stepping(optimizer):
        optimizer.step()
    return loss.item()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradients(model):
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def same(a, b):
    """Returns whether two states are equal, tensor by tensor."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if torch.is_tensor(a) else a == b


def check_same_everywhere(model):
    weights = flat(model)
    assert torch.isfinite(weights).all()
    for other in gathered(weights):
        assert torch.equal(other, weights)
    return weights
