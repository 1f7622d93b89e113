"""Trains a small model with DistributedOptimizer, and join where ranks have different numbers of batches."""
import hashlib

import torch

import addend.torch as hvd
from common import RANK, file, finish, gate, parameters
from addend.torch.compression import TopK


def make_model():
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 60), torch.nn.Tanh(), torch.nn.Linear(60, 60), torch.nn.Linear(60, 3))


def loss_of(model, rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return model(torch.rand(8, 20, generator=generator)).square().mean()


def checksum(model):
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def reference(batches):
    """All ranks' gradients, added in the order of the ranks; a rank that has joined adds nothing."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(max(batches)):
        sums = None
        for rank in range(len(batches)):
            if step < batches[rank]:
                gradients = torch.autograd.grad(loss_of(model, rank, step), list(model.parameters()))
                sums = gradients if sums is None else [s + g for s, g in zip(sums, gradients)]
        for parameter, total in zip(model.parameters(), sums):
            parameter.grad = total / len(batches)
        optimizer.step()
    return checksum(model)


def train(number, batches, compression="none", cross_barrier=False, gates=None):
    """Runs a training; {"checksum": of the weights, "last": the rank that joined last, if join was needed}."""
    model = make_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(RANK)  # until the broadcast
    compression = {"none": hvd.Compression.none, "bf16": hvd.Compression.bf16, "top_k": TopK()}[compression]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), compression)
    if cross_barrier:
        optimizer = hvd.CrossBarrier(model, optimizer, num_steps=batches[RANK])
    hvd.broadcast_parameters(model.state_dict())
    hvd.broadcast_optimizer_state(optimizer)
    file(f"steps{number}").write_text("0")
    for step in range(batches[RANK]):
        if str(step) in (gates or {}):
            gate(gates[str(step)])
        optimizer.zero_grad()
        loss_of(model, RANK, step).backward()
        optimizer.step()
        file(f"steps{number}").write_text(str(step + 1))
    result = {}
    if len(set(batches)) > 1:
        result["last"] = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), result["last"])
    result["checksum"] = checksum(model)
    return result


def main():
    torch.set_num_threads(1)
    hvd.init()
    results = [train(number, **run) for number, run in enumerate(parameters()["runs"])]
    hvd.shutdown()
    if RANK == 0:
        for run, result in zip(parameters()["runs"], results):
            result["reference"] = reference(run["batches"])
    finish(results)


main()
