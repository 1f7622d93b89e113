"""PyTorch tensors pushed from an emulated GPU: tensors in host memory stand for the GPU's, and the stream is emulated.

The same is done without emulation first, and every result is handed over: the test compares them.
"""
import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from common import RANK, gate, outcome, finish, parameters
from tests.support import emulated_gpu

p = parameters()
LOCAL_RANK = int(os.environ["LOCAL_RANK"])
gpu = emulated_gpu.Gpu(p["bus_ids"][LOCAL_RANK])

import addend.torch  # noqa: E402
from addend.torch import _gpu  # noqa: E402
from addend.torch.compression import RandomK, TopK  # noqa: E402


class Emulation:
    """From its creation on, tensors count as the GPU's. Counts rounds, and makes users of a result wait for it."""

    def __init__(self):
        self.rounds = 0
        self.recorded = []  # PyTorch's allocator waits for a stream before it reuses memory; the host's does not
        start, receive = _gpu.start, _gpu.receive

        def counting(*arguments):
            self.rounds += 1
            return start(*arguments)

        def waiting(handle, room, target):
            receive(handle, room, target)
            assert gpu._cuda.cudaStreamSynchronize(gpu.stream) == 0  # the test's own
            self.recorded = [one for one in self.recorded if one is not room and one is not target]

        _gpu.on_gpu = lambda tensor: True
        _gpu.stream_of = lambda tensor: (gpu.stream, self.recorded.append)
        _gpu.start, _gpu.receive = counting, waiting


def digest_of(tensors):
    digest = hashlib.sha256()
    for one in tensors:
        one = one.detach().resolve_neg().contiguous()
        digest.update(("%s %s " % (one.dtype, list(one.shape))).encode())
        digest.update(one.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def values_of(dtype, shape):
    generator = torch.Generator().manual_seed(10 + RANK)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-100, 100, shape, generator=generator).to(dtype)


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8)


def allreduces(prefix):
    """{name: digest} of single sums, in place and not, of every kind of tensor."""
    found = {}
    for dtype in DTYPES:
        for kind in ("plain", "transposed", "strided", "negative", "empty"):
            values = values_of(dtype, (0, 3) if kind == "empty" else (301, 67))
            if kind == "transposed":
                values = values.t()
            if kind == "strided":
                values = values[::3, 1::2]
            if kind == "negative":
                values = values._neg_view()
            name, before = "%s %s %s" % (prefix, dtype, kind), values.resolve_neg().clone()
            apart = addend.torch.allreduce(values, name=name, op=addend.torch.Sum, prescale_factor=0.5)
            assert torch.equal(values, before)
            both = addend.torch.grouped_allreduce([values, values], name=name + " two", op=addend.torch.Max)
            into = addend.torch.allreduce_(values, name=name + " into", postscale_factor=3.0, op=addend.torch.Sum)
            assert into is values
            found["%s %s" % (dtype, kind)] = digest_of([apart, *both, into])
    return found


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.first = torch.nn.Linear(8 * 36, 700)
        self.last = torch.nn.Linear(700, 5)

    def forward(self, x):
        return self.last(torch.relu(self.first(torch.relu(self.convolution(x)).flatten(1))))


def make():
    torch.manual_seed(4)
    return Network().to(memory_format=torch.channels_last)  # gradients that are not contiguous


def batch(step):
    return torch.rand(4, 3, 6, 6, generator=torch.Generator().manual_seed(1000 * step + RANK))


def trained(model, optimizer, steps=6):
    for step in range(steps):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    return digest_of(model.parameters())


def optimizers():
    found = {}
    for name in ("none", "fp16", "bf16"):
        model = make()
        optimizer = addend.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), named_parameters=model.named_parameters(),
            compression=getattr(addend.torch.Compression, name))
        found["optimizer, " + name] = trained(model, optimizer)
    return found


def hooks():
    found = {}
    compressions = {
        "none": lambda: addend.torch.Compression.none, "fp16": lambda: addend.torch.Compression.fp16,
        "random k": lambda: RandomK(0.2), "top k": lambda: TopK(0.2)}
    for name, compression in compressions.items():
        for views in (False, True):
            model = DistributedDataParallel(make(), bucket_cap_mb=0.1, gradient_as_bucket_view=views)
            state = addend.torch.HookState(model, compression())
            model.register_comm_hook(state, addend.torch.ddp_comm_hook)
            found["hook, %s, views %s" % (name, views)] = trained(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return found


def same_bits():
    dist._DEFAULT_FIRST_BUCKET_BYTES = 2000
    host = {**allreduces("host"), **optimizers(), **hooks()}
    emulation = Emulation()
    device = {}
    rounds = {}
    for part in (lambda: allreduces("device"), optimizers, hooks):
        before = emulation.rounds
        device.update(part())
        rounds[len(rounds)] = emulation.rounds - before
    return {"host": host, "device": device, "rounds": list(rounds.values())}


def dropped():
    """Abandoned handles: their memory is freed when their rounds have ended."""
    from addend import _core
    ranks = addend.torch.size()
    Emulation()
    for step in range(20):
        addend.torch.allreduce_async(torch.ones(50_000), name="dropped %d" % (step % 4))
        result = addend.torch.allreduce(torch.ones(1000), name="kept", op=addend.torch.Sum)
    kept = len(_core._dropped)
    addend.torch.shutdown()
    return {"right": bool((result == ranks).all()), "under_way": kept, "left": len(_core._dropped)}


def another_device():
    """A rank has a single GPU: a tensor of another GPU is refused, and the job goes on."""
    Emulation()
    addend.torch.allreduce(torch.ones(10), name="first")
    _gpu._own = (_gpu._own[0], torch.device("cuda:1"))
    found = outcome(lambda: addend.torch.allreduce(torch.ones(10), name="second"))
    _gpu._own = (None, None)
    addend.torch.allreduce(torch.ones(10), name="third")
    return found


def killed():
    """A rank dies in the middle of the training."""
    Emulation()
    if p["way"] == "hook":
        model = DistributedDataParallel(make(), bucket_cap_mb=0.1)
        model.register_comm_hook(addend.torch.HookState(model), addend.torch.ddp_comm_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        model = make()
        optimizer = addend.torch.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
    trained(model, optimizer)
    gate("trained")
    return outcome(lambda: trained(model, optimizer, 100_000))


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if p.get("group"):
        dist.init_process_group("gloo")
    addend.torch.init()
    result = globals()[p["what"]]()
    if p.get("shutdown", True):
        addend.torch.shutdown()
    finish(result)
    if p.get("group") and p.get("shutdown", True):
        dist.destroy_process_group()
    if not p.get("shutdown", True):
        os._exit(0)  # gloo would wait for the rank that has died


main()
