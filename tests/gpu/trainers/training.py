"""Trains the demo's model on the GPU, which all ranks share; whatever the test asks for."""
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import addend.torch
from tests.cluster.trainers.common import RANK, finish, parameters

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
from train_char_transformer import Batches, CharTransformer, load_text, weights_checksum  # noqa: E402

p = parameters()
DEVICE = torch.device("cuda:0")
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")


def average(model):
    """Of all gradients, on the GPU; which of them differ from what host memory gives under other names."""
    gradients = {name: one.grad for name, one in model.named_parameters()}
    copies = {name: one.cpu() for name, one in gradients.items()}
    handles = [addend.torch.allreduce_async_(one, name="device " + name) for name, one in gradients.items()]
    for handle in handles:
        handle.wait()
    handles = [addend.torch.allreduce_async_(one, name="host " + name) for name, one in copies.items()]
    for handle in handles:
        handle.wait()
    # Bits, not values: a NaN equals itself.
    return [name for name, one in gradients.items()
            if not torch.equal(one.cpu().view(torch.int32), copies[name].view(torch.int32))]


def training():
    """By `way`, on a stream that is not the default one if `own_stream`."""
    text, characters = load_text()
    batches = Batches(text, RANK)
    torch.manual_seed(7)
    different = []
    with torch.cuda.stream(torch.cuda.Stream(DEVICE) if p["own_stream"] else None):
        model = CharTransformer(characters).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        trained = model
        if p["way"] == "optimizer":
            optimizer = addend.torch.DistributedOptimizer(
                optimizer, named_parameters=model.named_parameters(), compression=addend.torch.Compression.bf16)
        if p["way"] == "hook":
            trained = DistributedDataParallel(model, bucket_cap_mb=0.2)
            trained.register_comm_hook(addend.torch.HookState(trained), addend.torch.ddp_comm_hook)
        losses = []
        for _ in range(p["steps"]):
            inputs, targets = (one.to(DEVICE) for one in batches.next())
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(trained(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            if p["way"] == "allreduce":
                different += average(model)
            optimizer.step()
            losses.append(loss.item())
        checksum = weights_checksum(model.cpu())
    return {"different": different, "checksum": checksum, "losses": losses}


def steady():
    """What CUDA's runtime is asked for in rounds after the first ones."""
    tensors = [torch.ones(elements, device=DEVICE) for elements in (1, 1000, 3_000_000)]

    def round_of_all():
        handles = [addend.torch.allreduce_async_(one, name="steady %d" % i) for i, one in enumerate(tensors)]
        for handle in handles:
            handle.wait()

    for _ in range(5):
        round_of_all()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        with torch.profiler.record_function("push-pulls"):  # the profiler itself waits for the GPU behind it
            for _ in range(20):
                round_of_all()
    events = profile.events()
    measured = next(one.time_range for one in events if one.name == "push-pulls" and "CPU" in str(one.device_type))
    names = [one.name for one in events if measured.start <= one.time_range.start < measured.end]
    return {"copies": names.count("cudaMemcpyAsync"), "waits": [name for name in names if name in WAITS],
            "right": all(bool((one == 1).all()) for one in tensors)}


def main():
    torch.cuda.set_device(DEVICE)
    if p.get("way") == "hook":
        dist.init_process_group("gloo")
    addend.torch.init()
    result = globals()[p["what"]]()
    addend.torch.shutdown()
    if dist.is_initialized():
        dist.destroy_process_group()
    finish(result)


main()
