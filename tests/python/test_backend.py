"""The backend "addend" of torch.distributed: its collectives, and what PyTorch builds on them."""

import datetime
import faulthandler
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import addend  # noqa: E402
import addend.torch  # noqa: E402
from tests.support.ports import free_port  # noqa: E402

RANKS = 2
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def run(agent, body, **extra):
    return agent.run_ranks(body, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **extra)


def start():
    faulthandler.dump_traceback_later(90, exit=True)  # a rank that hangs shows where
    torch.set_num_threads(1)
    dist.init_process_group("addend")
    return dist.get_rank(), dist.get_world_size()


def equal_everywhere(tensor):
    found = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    return all(torch.equal(found[0], one) for one in found)


# ---- collectives ----


def all_reduces():
    rank, size = start()
    assert dist.get_backend() == "addend"
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
                  torch.int16, torch.int32, torch.int64):
        for shape in ((), (3,), (0,), (2, 5)):
            for op, expected in ((dist.ReduceOp.SUM, 3), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.MAX, 2)):
                tensor = torch.full(shape, rank + 1).to(dtype)
                dist.all_reduce(tensor, op)
                assert torch.equal(tensor, torch.full(shape, expected).to(dtype)), (dtype, shape, op)
    mean = torch.full((3,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert torch.equal(mean, torch.full((3,), 0.5))
    strided = torch.full((4, 4), float(rank)).t()[1:3]
    dist.all_reduce(strided)
    assert torch.equal(strided, torch.ones(2, 4))
    pairs = torch.full((3,), complex(rank, 1))
    dist.all_reduce(pairs)
    assert torch.equal(pairs, torch.full((3,), complex(1, 2)))
    dist.destroy_process_group()


def test_all_reduce_has_every_dtype_and_operation_of_addend(start_agent):
    run(start_agent(RANKS), all_reduces)


def others():
    rank, size = start()
    product = torch.full((3,), 2.0 + rank)
    dist.all_reduce(product, dist.ReduceOp.PRODUCT)
    assert torch.equal(product, torch.full((3,), 6.0))
    found = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(found, torch.full((2,), float(rank)))
    assert [one[0].item() for one in found] == [0, 1]
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    told = [rank]
    dist.broadcast_object_list(told, 1)
    assert told == [1]
    sent = torch.ones(2)
    if rank == 0:
        dist.send(sent, 1)
    else:
        got = torch.zeros(2)
        dist.recv(got, 0)
        assert torch.equal(got, sent)
    dist.destroy_process_group()


def test_other_collectives_go_through_gloo(start_agent):
    run(start_agent(RANKS), others)


def broadcasts():
    rank, size = start()
    for dtype in (torch.float32, torch.bool, torch.uint8, torch.float64, torch.int16, torch.complex64):
        tensor = (torch.arange(5) + rank).to(dtype)
        dist.broadcast(tensor, 1)
        assert torch.equal(tensor, (torch.arange(5) + 1).to(dtype)), dtype
    dist.barrier()
    dist.destroy_process_group()


def test_broadcast_takes_any_dtype(start_agent):
    run(start_agent(RANKS), broadcasts)


def asynchronous():
    rank, size = start()
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() and torch.equal(tensor, torch.full((1000,), 2.0))
    futures = [dist.all_reduce(torch.full((10,), float(i)), async_op=True).get_future() for i in range(20)]
    assert [future.wait()[0][0].item() for future in futures] == [2.0 * i for i in range(20)]
    dist.destroy_process_group()


def test_operations_overlap_and_have_futures(start_agent):
    run(start_agent(RANKS), asynchronous)


def nested():
    """Each callback waits for another operation's future, ten deep."""
    rank, size = start()

    def deeper(depth):
        def callback(_):
            if depth == 0:
                return threading.current_thread().name
            future = dist.all_reduce(torch.ones(depth), async_op=True).get_future()
            return future.then(deeper(depth - 1)).wait()

        return callback

    future = dist.all_reduce(torch.ones(99), async_op=True).get_future().then(deeper(10))
    done = []
    waiter = threading.Thread(target=lambda: done.append(future.wait()), daemon=True)
    waiter.start()
    waiter.join(60)
    assert done, "a callback that waits for a future holds up the others"
    dist.destroy_process_group()


def test_a_callback_may_wait_for_another_operation(start_agent):
    run(start_agent(RANKS), nested)


def limits():
    rank, size = start()
    tensor = torch.ones(3)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(RuntimeError, match=r"process group \S+: .*float32\[3\].* under way after 0.2 s") as raised:
            work.wait(datetime.timedelta(seconds=0.2))
        assert isinstance(raised.value, addend.WaitTimeoutError)
        dist.send(tensor, 1)
        assert work.wait()
    else:
        dist.recv(torch.zeros(3), 0)
        dist.all_reduce(tensor)
    assert tensor[0] == 2
    dist.destroy_process_group()


def test_a_timeout_is_an_error_and_the_operation_goes_on(start_agent):
    run(start_agent(RANKS), limits)


# ---- groups ----


def groups():
    rank, size = start()
    everybody, alone = dist.new_group([0, 1]), [dist.new_group([0]), dist.new_group([1])][rank]
    mine, ours = torch.ones(2), torch.ones(2)
    dist.all_reduce(mine, group=alone)
    dist.all_reduce(ours, group=everybody)
    dist.broadcast(ours, 1, group=everybody)
    assert mine[0] == 1 and ours[0] == 2
    dist.destroy_process_group()


def test_groups_of_some_ranks_and_of_all(start_agent):
    run(start_agent(RANKS), groups)


def joined_before():
    addend.torch.init()
    rank, size = start()
    dist.destroy_process_group()
    assert addend.torch.is_initialized(), "the script has joined by itself, and leaves by itself"
    with pytest.raises(RuntimeError, match=f"rank {rank} of 2 in the Addend job .* cannot be rank 0 of 1"):
        dist.init_process_group("addend", store=dist.HashStore(), rank=0, world_size=1)
    addend.torch.shutdown()


def test_a_script_may_join_by_itself(start_agent):
    run(start_agent(RANKS), joined_before)


def mapped():
    dist.init_process_group("cpu:addend,cuda:addend")
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor[0] == dist.get_world_size()
    assert any(name.startswith("torch.distributed/") for name in addend._core.declared_under(""))
    dist.destroy_process_group()


@pytest.mark.skipif(VERSION < (2, 0), reason="device maps of PyTorch 2.0")
def test_a_map_of_devices_may_name_it(start_agent):
    run(start_agent(RANKS), mapped)


# ---- PyTorch's own layers above it ----


def weights(wrap, steps=4):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 3))
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    torch.manual_seed(10 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 20)).pow(2).mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def with_hook(model):
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(addend.torch.HookState(wrapped), addend.torch.ddp_comm_hook)
    return wrapped


def trains():
    start()
    plain = weights(DistributedDataParallel)
    assert equal_everywhere(plain)
    assert torch.equal(plain, weights(with_hook))
    for options in ({"static_graph": True}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
                    {"find_unused_parameters": True}):
        assert torch.equal(plain, weights(lambda model: DistributedDataParallel(model, **options))), options
    dist.destroy_process_group()


def test_ddp_trains_as_with_the_hook_bit_for_bit(start_agent):
    run(start_agent(RANKS), trains)


def hooks():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    start()
    for state, hook in ((powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
                        (None, default_hooks.fp16_compress_hook)):
        def hooked(model):
            wrapped = DistributedDataParallel(model)
            wrapped.register_comm_hook(state, hook)
            return wrapped

        assert equal_everywhere(weights(hooked))
    dist.destroy_process_group()


def test_hooks_of_pytorch_work_over_it(start_agent):
    run(start_agent(RANKS), hooks)


def unevenly():
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rank, size = start()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Join([model]):
        for _ in range(3 + rank):
            optimizer.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    sharded = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    sharded.step()
    assert all(equal_everywhere(parameter.detach()) for parameter in model.parameters())
    dist.destroy_process_group()


def test_join_and_zero(start_agent):
    run(start_agent(RANKS), unevenly)


def modern():
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    rank, size = start()
    world = dist.group.WORLD

    def doubled(tensor):
        return functional.all_reduce(tensor * 2, "sum", world) + 1

    assert doubled(torch.ones(3))[0] == 5
    assert torch.compile(doubled, backend="aot_eager")(torch.ones(3))[0] == 5
    plain = weights(DistributedDataParallel)
    compiled = weights(lambda model: torch.compile(DistributedDataParallel(model), backend="aot_eager"))
    assert torch.equal(plain, compiled)
    mesh = init_device_mesh("cpu", (size,))
    assert distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]).sum().full_tensor() == 32
    scattered = torch.zeros(2)
    dist.reduce_scatter_tensor(scattered, torch.ones(2 * size))
    assert scattered[0] == size
    dist.destroy_process_group()


@pytest.mark.skipif(VERSION < (2, 6), reason="functional collectives and DTensor of PyTorch 2.6")
def test_compiled_models_functional_collectives_and_dtensor(start_agent):
    run(start_agent(RANKS), modern)


def sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, size = start()

    def wrap(model):
        for part in model:
            if isinstance(part, nn.Linear):
                fully_shard(part, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3))
    model = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 20)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


@pytest.mark.skipif(VERSION < (2, 7), reason="FSDP2 works on CPUs from PyTorch 2.7 on")
def test_fsdp2(start_agent):
    run(start_agent(RANKS), sharded)
