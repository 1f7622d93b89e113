"""The process group "addend" with tensors on a GPU, which all ranks share: results beside those of the same tensors in host memory.

NCCL carries the other collectives. It refuses ranks that share a GPU, unless they are on different hosts, as it believes here.
"""
import hashlib
import os

RANK = int(os.environ["RANK"])
os.environ.update(NCCL_HOSTID="rank%d" % RANK, NCCL_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import addend.torch as hvd  # noqa: E402
from tests.cluster.trainers.common import finish, parameters  # noqa: E402

p = parameters()
DEVICE = torch.device(p["device"])
SIZE = int(os.environ["WORLD_SIZE"])
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8, torch.uint8)
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MIN, dist.ReduceOp.MAX)


def values_of(dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(100 * seed + RANK)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 30, shape, generator=generator).to(dtype)


def bits(tensor):
    return hashlib.sha256(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def moved(tensors, device):
    return [one.to(device, copy=True) for one in tensors]


def twice(name, function, *tensors):
    """Calls function on the GPU and then in host memory; returns the name if the bits differ."""
    found = [bits(one) for one in function(*moved(tensors, DEVICE))]
    wanted = [bits(one) for one in function(*moved(tensors, "cpu"))]
    return [] if found == wanted else [name]


def sums():
    """all_reduce and broadcast, at once and asynchronously, in the whole group and in one of some ranks."""
    different = []
    groups = [("world", dist.group.WORLD, SIZE)]
    some = list(range(1, SIZE)) if SIZE > 1 else [0]
    made = dist.new_group(some)
    if RANK in some:
        groups.append(("some", made, len(some)))
    for title, group, _ in groups:
        for dtype in DTYPES:
            for op in OPS:
                if op == dist.ReduceOp.AVG and not dtype.is_floating_point:
                    continue

                def reduce(values):
                    dist.all_reduce(values, op, group=group)
                    return [values]

                different += twice("%s %s %d" % (title, dtype, OPS.index(op)), reduce, values_of(dtype, (301, 67)))

            def broadcast(values):
                dist.broadcast(values, some[-1], group=group)
                return [values]

            different += twice("%s broadcast %s" % (title, dtype), broadcast, values_of(dtype, (5, 7)))

        def several(*values):
            works = [dist.all_reduce(one, group=group, async_op=True) for one in values]
            futures = [one.get_future().then(lambda done: done.value()[0] * 2) for one in works[:2]]
            for one in works:
                one.wait()
            return [*values, *(one.wait() for one in futures)]

        different += twice(title + " several", several, *(values_of(torch.float32, (n,), n) for n in (1, 1000, 2_000_003)))
        dist.barrier(group=group)
    return {"different": different}


def train(model, batches, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs in batches:
        optimizer.zero_grad()
        loss = model(inputs.to(device)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))


def ddp():
    """A script that changes init_process_group() alone."""
    batches = [values_of(torch.float32, (16, 64), step) for step in range(12)]
    model = net().to(DEVICE)
    trained = DistributedDataParallel(model, bucket_cap_mb=0.1)
    first, last = train(trained, batches[:1], DEVICE), train(trained, batches, DEVICE)
    return {"weights": [bits(one) for one in model.parameters()], "first": first, "last": last}


def collectives():
    """Horovod's names, and a collective that is left to NCCL."""
    different = []
    rows = torch.arange(2 + RANK, dtype=torch.float32).reshape(-1, 1) + RANK
    different += twice("allgather", lambda one: [hvd.allgather(one, name="gather " + one.device.type)], rows)
    different += twice("broadcast", lambda one: [hvd.broadcast(one, SIZE - 1, name="cast " + one.device.type)], rows[:2].clone())
    splits = torch.arange(SIZE * 3, dtype=torch.float32) + 100 * RANK
    different += twice("alltoall", lambda one: [hvd.alltoall(one, name="all " + one.device.type)], splits)
    different += twice("reducescatter", lambda one: [hvd.reducescatter(one, name="scatter " + one.device.type)],
                       values_of(torch.float32, (SIZE * 5, 3)))
    different += twice("grouped", lambda *two: hvd.grouped_allreduce(list(two), name="grouped " + two[0].device.type),
                       values_of(torch.float32, (7,)), values_of(torch.float16, (1000,), 1))
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        different += twice("compressed", lambda one: [hvd.allreduce(
            one, name="%s %s" % (compression.__name__, one.device.type), compression=compression)], values_of(torch.float32, (999,)))
    different += twice("adasum", lambda one: [hvd.allreduce(one, name="adasum " + one.device.type, op=hvd.Adasum)],
                       values_of(torch.float32, (999,)))
    gathered = torch.zeros(SIZE * 4, device=DEVICE)
    dist.all_gather_into_tensor(gathered, torch.full((4,), float(RANK), device=DEVICE))
    if not torch.equal(gathered.cpu(), torch.arange(SIZE).repeat_interleave(4).float()):
        different.append("all_gather_into_tensor")
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(DEVICE)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return {"different": different, "weights": [bits(one) for one in model.parameters()]}


def fsdp():
    """FSDP2 over all ranks, and over the ranks of a node with replicas on two nodes: by a mesh, and by Addend's hook."""
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard
    except ImportError as error:
        return {"missing": f"PyTorch {torch.__version__} has no FSDP2: {error}"}
    batches = [values_of(torch.float32, (16, 64), step) for step in range(6)]
    found = {}
    whole = init_device_mesh(DEVICE.type, (SIZE,), mesh_dim_names=("shard",))
    both = init_device_mesh(DEVICE.type, (2, SIZE // 2), mesh_dim_names=("replicate", "shard"))
    for title, mesh in (("fsdp", whole), ("hsdp", both), ("hook", both["shard"])):
        if title == "hook" and not hasattr(FSDPModule, "set_all_reduce_hook"):
            continue  # from PyTorch 2.7 on
        model = net().to(DEVICE)
        for part in model:
            if isinstance(part, nn.Linear):
                fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for module in model.modules():
            if title == "hook" and isinstance(module, FSDPModule):
                module.set_all_reduce_hook(hvd.replica_hook(module))
        train(model, batches, DEVICE)
        found[title] = [one.full_tensor().detach().cpu().sum().item() for one in model.parameters()]
    return found


def main():
    if DEVICE.type == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("addend")
    result = globals()[p["what"]]()
    dist.destroy_process_group()
    finish(result)


main()
