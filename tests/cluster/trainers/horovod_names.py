"""Each name of horovod.torch and byteps.torch does what its documentation says: a check for each."""
import os
import re
import sys
import traceback

import common
import torch

import byteps.torch as bps
import horovod.torch as hvd
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.parallel import DistributedDataParallel
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch.compression import Compressor
from horovod.torch.mpi_ops import allreduce as allreduce_of_mpi_ops

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
RANKS = range(SIZE)
TOTAL = sum(RANKS)
CHECKS = {}


def check(*names):
    def add(function):
        for name in names:
            CHECKS[name] = function
        return function

    return add


def equal(result, expected):
    expected = torch.as_tensor(expected)
    assert result.shape == expected.shape and torch.allclose(result.double(), expected.double()), (result, expected)


def mine(*shape):
    return torch.full(shape or (3,), float(RANK))


def raises(kind, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        return str(error)
    raise AssertionError("no %s" % kind.__name__)


# ---- horovod.torch ----


@check("init", "is_initialized", "shutdown")
def joins_and_leaves():
    assert hvd.is_initialized()
    hvd.init()
    hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init(process_sets=[hvd.ProcessSet([0])])
    assert hvd.is_initialized() and hvd.size() == SIZE
    hvd.barrier()
    hvd.shutdown()
    hvd.init(list(RANKS))


@check("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "is_homogeneous")
def knows_its_place():
    assert (hvd.rank(), hvd.size()) == (RANK, SIZE)
    assert hvd.local_size() * hvd.cross_size() == SIZE and hvd.is_homogeneous()
    assert hvd.cross_rank() * hvd.local_size() + hvd.local_rank() == RANK


@check("mpi_threads_supported", "mpi_enabled", "mpi_built", "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built")
def has_no_other_back_end():
    for asked in ("mpi_threads_supported", "mpi_enabled", "mpi_built", "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"):
        assert not getattr(hvd, asked)()


@check("gloo_enabled", "gloo_built")
def stands_for_gloo():
    assert hvd.gloo_enabled() and hvd.gloo_built()


@check("allreduce", "Average", "Sum", "Min", "Max", "Product")
def allreduces():
    product = 1.0
    for one in RANKS:
        product *= one + 1
    for op, expected in ((hvd.Average, TOTAL / SIZE), (hvd.Sum, TOTAL), (hvd.Min, 0), (hvd.Max, SIZE - 1)):
        equal(hvd.allreduce(mine(), op=op), [float(expected)] * 3)
    equal(hvd.allreduce(mine() + 1, op=hvd.Product), [product] * 3)
    equal(hvd.allreduce(mine().half(), average=False, prescale_factor=0.5, postscale_factor=4.0), [2.0 * TOTAL] * 3)
    equal(allreduce_of_mpi_ops(mine(), name="module path"), [TOTAL / SIZE] * 3)
    x = mine().requires_grad_()
    hvd.allreduce(x, op=hvd.Sum).sum().backward()
    equal(x.grad, [float(SIZE)] * 3)
    hvd.allreduce(mine(2), name="comes back")
    equal(hvd.allreduce(mine(5), name="comes back"), [TOTAL / SIZE] * 5)


@check("Adasum")
def adasums():
    # Orthogonal gradients are added, equal ones averaged.
    equal(hvd.allreduce(torch.eye(SIZE)[RANK], op=hvd.Adasum), torch.ones(SIZE))
    equal(hvd.allreduce(torch.ones(3), op=hvd.Adasum), torch.ones(3))
    model = torch.nn.Linear(SIZE, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Adasum)
    model(torch.eye(SIZE)[RANK : RANK + 1]).sum().backward()
    optimizer.step()
    equal(model.weight.detach(), -torch.ones(1, SIZE))


@check("allreduce_", "allreduce_async", "allreduce_async_", "poll", "synchronize")
def allreduces_in_its_forms():
    x = mine()
    assert hvd.allreduce_(x, op=hvd.Sum) is x
    equal(x, [float(TOTAL)] * 3)
    handle = hvd.allreduce_async(mine(), name="async", op=hvd.Sum)
    equal(hvd.synchronize(handle), [float(TOTAL)] * 3)
    assert hvd.poll(handle)
    x = mine()
    assert hvd.synchronize(hvd.allreduce_async_(x, op=hvd.Max)) is x
    equal(x, [SIZE - 1.0] * 3)


@check("grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_")
def allreduces_groups():
    def group():
        return [mine(2), mine(3).double()]

    for results in (
        hvd.grouped_allreduce(group(), op=hvd.Sum), hvd.grouped_allreduce_(group(), op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(group(), name="group", op=hvd.Sum)),
        hvd.synchronize(hvd.grouped_allreduce_async_(group(), op=hvd.Sum)),
    ):
        equal(results[0], [float(TOTAL)] * 2)
        equal(results[1], [float(TOTAL)] * 3)
    tensors = [one.requires_grad_() for one in group()]
    sum(one.sum() for one in hvd.grouped_allreduce(tensors, op=hvd.Average)).backward()
    equal(tensors[0].grad, [1.0] * 2)


@check("sparse_allreduce_async")
def sums_sparse_tensors():
    own = torch.sparse_coo_tensor([[RANK, SIZE]], [1.0, 1.0], (SIZE + 2,))
    result = hvd.sparse_allreduce_async(own, name="sparse", op=hvd.Sum)()
    equal(result.to_dense(), [1.0] * SIZE + [float(SIZE), 0.0])
    model = torch.nn.Embedding(SIZE + 1, 2, sparse=True)
    torch.nn.init.zeros_(model.weight)
    for dense in (False, True):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(list(model.parameters()), lr=1.0), model.named_parameters(), sparse_as_dense=dense)
        model(torch.tensor([RANK])).sum().backward()
        optimizer.synchronize()
        assert model.weight.grad.is_sparse
        equal(model.weight.grad.to_dense()[:, 0], [1.0 / SIZE] * SIZE + [0.0])
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()


def rows():
    return torch.full((RANK + 1, 2), float(RANK))


GATHERED = torch.cat([torch.full((one + 1, 2), float(one)) for one in RANKS])


@check("allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async")
def allgathers():
    equal(hvd.allgather(rows()), GATHERED)
    equal(hvd.synchronize(hvd.allgather_async(rows(), name="gather")), GATHERED)
    for results in (hvd.grouped_allgather([rows(), mine(1)]), hvd.synchronize(hvd.grouped_allgather_async([rows(), mine(1)], name="g"))):
        equal(results[0], GATHERED)
        equal(results[1], [float(one) for one in RANKS])
    x, y = rows().requires_grad_(), rows().requires_grad_()
    (hvd.allgather(x).sum() * (RANK + 1)).backward()
    equal(x.grad, torch.full((RANK + 1, 2), (TOTAL + SIZE) / SIZE))
    (hvd.grouped_allgather([y])[0].sum() * (RANK + 1)).backward()
    equal(y.grad, x.grad)
    raises(hvd.HorovodInternalError, hvd.allgather, torch.zeros(2, 2 + RANK))


@check("broadcast", "broadcast_", "broadcast_async", "broadcast_async_")
def broadcasts():
    root = SIZE - 1
    equal(hvd.broadcast(mine(), root), [float(root)] * 3)
    x = mine()
    assert hvd.broadcast_(x, root_rank=root) is x
    equal(x, [float(root)] * 3)
    equal(hvd.synchronize(hvd.broadcast_async(mine(), root, name="b")), [float(root)] * 3)
    x = mine()
    assert hvd.synchronize(hvd.broadcast_async_(x, root)) is x
    x = mine().requires_grad_()
    (hvd.broadcast(x, root).sum() * RANK).backward()
    equal(x.grad, [TOTAL / SIZE if RANK == root else 0.0] * 3)


@check("alltoall", "alltoall_async")
def exchanges():
    own = torch.tensor([[RANK, other] for other in RANKS for _ in range(other + 1)])
    received, splits = hvd.alltoall(own, splits=[other + 1 for other in RANKS])
    equal(received, [[other, RANK] for other in RANKS for _ in range(RANK + 1)])
    assert splits.tolist() == [RANK + 1] * SIZE
    even = torch.full((SIZE,), float(RANK))
    equal(hvd.alltoall(even), [float(one) for one in RANKS])
    equal(hvd.synchronize(hvd.alltoall_async(even, name="exchange")), [float(one) for one in RANKS])
    x = mine(SIZE).requires_grad_()
    (hvd.alltoall(x) * (RANK + 1)).sum().backward()
    equal(x.grad, [one + 1.0 for one in RANKS])
    nothing, counts = hvd.alltoall(torch.zeros(0, 2), splits=torch.zeros(SIZE, dtype=torch.int64))
    assert nothing.shape == (0, 2) and counts.dtype == torch.int64


@check("reducescatter", "reducescatter_async", "grouped_reducescatter", "grouped_reducescatter_async")
def reduces_and_scatters():
    own = torch.arange(SIZE + 1.0)[:, None] + RANK  # rank 0 has a row more
    share = slice(0, 2) if RANK == 0 else slice(RANK + 1, RANK + 2)
    summed = (torch.arange(SIZE + 1.0)[:, None] * SIZE + TOTAL)[share]
    equal(hvd.reducescatter(own, op=hvd.Sum), summed)
    equal(hvd.reducescatter(own), summed / SIZE)
    equal(hvd.synchronize(hvd.reducescatter_async(own, name="rs", op=hvd.Sum)), summed)
    for results in (hvd.grouped_reducescatter([own, own], op=hvd.Sum), hvd.synchronize(hvd.grouped_reducescatter_async([own, own], op=hvd.Sum))):
        equal(results[1], summed)
    x = mine(SIZE).requires_grad_()
    (hvd.reducescatter(x, op=hvd.Sum).sum() * (RANK + 1)).backward()
    equal(x.grad, [SIZE * (one + 1.0) for one in RANKS])


@check("ProcessSet", "add_process_set", "remove_process_set", "global_process_set")
def sums_in_process_sets():
    even = hvd.add_process_set([one for one in RANKS if one % 2 == 0])
    odd = hvd.add_process_set(hvd.ProcessSet([one for one in RANKS if one % 2 == 1]))
    own, other = (even, odd) if RANK % 2 == 0 else (odd, even)
    assert own.included() and not other.included() and own.size() == len(own.ranks)
    assert own.ranks[own.rank()] == RANK and {even.process_set_id, odd.process_set_id} == {1, 2}
    expected = float(sum(own.ranks))
    equal(hvd.allreduce(mine(), op=hvd.Sum, process_set=own), [expected] * 3)
    equal(hvd.allreduce(mine(), name="a", op=hvd.Sum, process_set=own), [expected] * 3)
    equal(hvd.allgather(mine(1), process_set=own), [float(one) for one in own.ranks])
    equal(hvd.broadcast(mine(), own.ranks[-1], process_set=own), [float(own.ranks[-1])] * 3)
    equal(hvd.alltoall(mine(own.size()), process_set=own), [float(one) for one in own.ranks])
    equal(hvd.reducescatter(mine(own.size()), op=hvd.Sum, process_set=own), [expected])
    equal(hvd.allreduce(mine() + 1, op=hvd.Product, process_set=own), [float(torch.tensor(own.ranks).add(1).prod())] * 3)
    assert hvd.broadcast_object(RANK, own.ranks[0], process_set=own) == own.ranks[0]
    hvd.barrier(process_set=own)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), process_set=own)
    model(mine(1)).sum().backward()
    optimizer.synchronize()
    equal(model.weight.grad, [[expected / own.size()]])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), process_set=other)
    before = model.weight.detach().clone()
    optimizer.step()  # of others: this rank steps alone
    equal(model.weight.detach(), before - expected / own.size())
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Adasum, process_set=own)
    optimizer.zero_grad()
    model(torch.full((1,), 1.0 + RANK % 2)).sum().backward()
    optimizer.step()
    equal(model.weight.detach(), [[-1.0 - RANK % 2]])  # of equal changes the average
    raises(ValueError, hvd.allreduce, mine(), process_set=other)
    raises(ValueError, hvd.add_process_set, even.ranks)
    assert hvd.global_process_set.size() == SIZE and hvd.global_process_set.process_set_id == 0
    equal(hvd.allreduce(mine(), op=hvd.Sum, process_set=hvd.global_process_set), [float(TOTAL)] * 3)
    assert hvd.remove_process_set(odd) and hvd.remove_process_set(even) and not hvd.remove_process_set(even)
    assert even.process_set_id is None and not hvd.remove_process_set(hvd.global_process_set)


@check("HorovodInternalError")
def a_mismatch_leaves_the_job_usable():
    for name in (None, "differs"):
        text = raises(hvd.HorovodInternalError, hvd.allreduce, torch.zeros(2 + RANK), name=name)
        assert len(set(re.findall(r"\[\d\]", text))) == 2, text  # of the two ranks that were found first, on whichever node
        equal(hvd.allreduce(mine(), op=hvd.Sum), [float(TOTAL)] * 3)
    equal(hvd.allreduce(mine(), name="differs", op=hvd.Sum), [float(TOTAL)] * 3)
    assert hvd.HorovodInternalError is HorovodInternalError and issubclass(HorovodInternalError, RuntimeError)


@check("Compression")
def compresses():
    equal(hvd.allreduce(mine(), op=hvd.Sum, compression=hvd.Compression.fp16), [float(TOTAL)] * 3)
    equal(hvd.allreduce(mine(), op=hvd.Sum, compression=hvd.Compression.none), [float(TOTAL)] * 3)

    class Halves(Compressor):
        @staticmethod
        def compress(tensor):
            return tensor / 2, None

        @staticmethod
        def decompress(tensor, ctx):
            return tensor * 2

    equal(hvd.allreduce(mine(), op=hvd.Sum, compression=Halves), [float(TOTAL)] * 3)


@check("DistributedOptimizer")
def optimizes():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    for passes in (1, 2):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), backward_passes_per_step=passes)
        for _ in range(passes):
            model(mine(1)).sum().backward()
        optimizer.synchronize()
        equal(model.weight.grad, [[passes * TOTAL / SIZE]])
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    equal(model.weight.detach(), [[-3.0 * TOTAL / SIZE]])


@check("broadcast_parameters", "broadcast_object", "allgather_object")
def shares_parameters_and_objects():
    model = torch.nn.Linear(2, 2)
    for given in (model.state_dict, lambda: list(model.named_parameters()), lambda: list(model.parameters())):
        torch.nn.init.constant_(model.weight, RANK)
        hvd.broadcast_parameters(given(), root_rank=SIZE - 1)
        equal(model.weight.detach(), torch.full((2, 2), SIZE - 1.0))
    assert hvd.broadcast_object({"rank": RANK}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object(RANK) == list(RANKS)
    assert hvd.allgather_object(RANK, name="objects") == list(RANKS)
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        raises(TypeError, hvd.broadcast_object, lambda: RANK)
    else:
        captured = RANK
        assert hvd.broadcast_object(lambda: captured, root_rank=1)() == 1


@check("broadcast_optimizer_state")
def shares_the_optimizers_state():
    model = torch.nn.Linear(2, 1)
    kept = model.weight.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (RANK + 1), weight_decay=0.1)
    if RANK == 1:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        kept = model.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    state = optimizer.state_dict()
    assert abs(state["param_groups"][0]["lr"] - 0.2) < 1e-9 and float(state["state"][0]["step"]) == 1
    equal(model.weight.detach(), kept)
    # None has state: it is created, and gradients are there.
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.state_dict()["state"][0]["momentum_buffer"].abs().sum() == 0 and model.weight.grad is not None
    raises(ValueError, hvd.broadcast_optimizer_state, torch.optim.LBFGS(model.parameters()), 0)


@check("join", "barrier")
def joins_when_the_data_end():
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    for _ in range(1 if RANK == 0 else 2):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    last = hvd.join()
    assert last != 0
    hvd.broadcast_parameters(model.state_dict(), last)
    equal(model.weight.detach(), [[-1.0 - (SIZE - 1) / SIZE]])
    hvd.barrier()


@check("SyncBatchNorm")
def normalizes_over_all_batches():
    torch.manual_seed(3)
    parts = [torch.randn(one + 2, 3, 4) for one in RANKS]
    layer, whole = hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
    x, y = parts[RANK].clone().requires_grad_(), torch.cat(parts).requires_grad_()
    out, expected = layer(x), whole(y)
    first = sum(len(one) for one in parts[:RANK])
    own = slice(first, first + len(x))
    equal(out.detach(), expected[own].detach())
    (out ** 3).sum().backward()
    (expected ** 3).sum().backward()
    assert torch.allclose(x.grad, y.grad[own], atol=1e-4)
    assert torch.allclose(layer.running_mean, whole.running_mean) and torch.allclose(layer.running_var, whole.running_var)
    layer.eval(), whole.eval()
    equal(layer(x).detach(), whole(y)[own].detach())


@check("elastic")
def trains_elastically():
    model = torch.nn.Linear(1, 1)
    sampler = hvd.elastic.ElasticSampler(range(2 * SIZE), shuffle=False)
    seen = []
    state = hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), sampler=sampler, batch=0)
    state.register_reset_callbacks([lambda: seen.append("reset")])

    @hvd.elastic.run
    def train(state):
        if not seen:
            state.batch = 5
            state.commit()
            state.batch = 7
            torch.nn.init.constant_(state.model.weight, 8.0)
            raise HorovodInternalError("as after the loss of a node")
        return state.batch, float(state.model.weight) != 8.0

    assert train(state) == (5, True) and seen == ["reset"]
    attempts = []

    @hvd.elastic.run
    def fail(state):
        attempts.append(state.commits)
        raise HorovodInternalError("as always")

    assert raises(HorovodInternalError, fail, state) == "as always" and attempts == [1] * 4
    assert list(sampler) == [RANK, RANK + SIZE] and len(sampler) == 2
    sampler.record_batch(0, 1)
    sampler.load_state_dict(sampler.state_dict())
    assert list(sampler) == [RANK + SIZE]
    assert issubclass(HostsUpdatedInterrupt, RuntimeError)


@check("start_timeline", "stop_timeline")
def says_where_timelines_are():
    assert "addendctl trace" in raises(HorovodInternalError, hvd.start_timeline, "timeline.json")
    hvd.stop_timeline()


# ---- byteps.torch ----


@check("bps.init", "bps.shutdown", "bps.suspend", "bps.resume", "bps.rank", "bps.size", "bps.local_rank", "bps.local_size")
def leaves_and_comes_back():
    bps.init()
    bps.push_pull(mine(), name="before")
    bps.suspend()
    bps.resume(1, 1, RANK)
    assert (bps.rank(), bps.size(), bps.local_rank() < bps.local_size()) == (RANK, SIZE, True)
    hvd.barrier()
    bps.shutdown()
    bps.init()


@check("bps.push_pull", "bps.push_pull_async", "bps.push_pull_inplace", "bps.push_pull_async_inplace", "bps.byteps_push_pull",
       "bps.push_pull_group_sync_inplace", "bps.byteps_torch_set_num_grads", "bps.poll", "bps.synchronize", "bps.declare", "bps.Compression")
def pushes_and_pulls():
    bps.declare("a")
    equal(bps.push_pull(mine(), name="a", compression=bps.Compression.fp16), [TOTAL / SIZE] * 3)
    equal(bps.synchronize(bps.push_pull_async(mine(), average=False, name="b")), [float(TOTAL)] * 3)
    for in_place in (bps.push_pull_async_inplace, bps.byteps_push_pull):
        x = mine()
        handle = in_place(x, average=False, name="c", priority=3)
        assert bps.synchronize(handle) is x and bps.poll(handle)
        equal(x, [float(TOTAL)] * 3)
    equal(bps.push_pull_inplace(mine(), name="d"), [TOTAL / SIZE] * 3)
    bps.byteps_torch_set_num_grads(2)
    for count in (1, 2, 1):
        handle, pushed = bps.push_pull_group_sync_inplace(mine(), name="group")
        assert pushed == count
        equal(bps.synchronize(handle), [TOTAL / SIZE] * 3)


@check("bps.get_pushpull_speed")
def knows_its_speed():
    when, speed = bps.get_pushpull_speed()
    assert when >= 0 and speed >= 0.0


def one_step(make):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = make(model, torch.optim.SGD(model.parameters(), lr=1.0))
    model(mine(1)).sum().backward()
    optimizer.step()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    return model.weight.detach()


@check("bps.DistributedOptimizer", "bps.CrossBarrier")
def optimizes_as_byteps():
    equal(one_step(lambda model, sgd: bps.DistributedOptimizer(sgd, model.named_parameters())), [[-TOTAL / SIZE]])
    equal(one_step(lambda model, sgd: CrossBarrier(model, sgd, named_parameters=model.named_parameters(), num_steps=1)), [[-TOTAL / SIZE]])
    os.environ["BYTEPS_ENABLE_ASYNC"] = "1"
    try:
        result = one_step(lambda model, sgd: bps.DistributedOptimizer(sgd, model.named_parameters()))
        assert -TOTAL <= float(result) <= 0.0
        hvd.barrier()
    finally:
        del os.environ["BYTEPS_ENABLE_ASYNC"]


@check("bps.parallel.DistributedDataParallel")
def averages_in_the_backward_pass():
    module = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.BatchNorm1d(1, affine=False))
    torch.nn.init.constant_(module[0].weight, RANK + 2.0)
    unused = torch.nn.Parameter(torch.zeros(1))
    module.register_parameter("unused", unused)
    model = DistributedDataParallel(module, device_ids=[0])
    equal(module[0].weight.detach(), [[2.0]])
    model = model.eval()
    for synchronized in (False, True):
        with model.no_sync() if not synchronized else torch.enable_grad():
            module[0](mine(1, 1)).sum().backward()
        equal(module[0].weight.grad, [[2.0 * TOTAL / SIZE if synchronized else float(RANK)]])
    equal(unused.grad, [0.0])
    model.train()
    model(torch.arange(3.0)[:, None] + RANK).sum().backward()


@check("bps.broadcast_parameters", "bps.broadcast_optimizer_state", "bps.broadcast_object")
def shares_as_byteps():
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, RANK)
    bps.broadcast_parameters(model.state_dict(), root_rank=1, prefix="Parameter.")
    equal(model.weight.detach(), torch.ones(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (RANK + 1), momentum=0.9)
    bps.broadcast_optimizer_state(optimizer, root_rank=1)
    assert abs(optimizer.param_groups[0]["lr"] - 0.2) < 1e-9
    assert bps.broadcast_object(RANK, 1) == 1


def main():
    hvd.init()
    results, done = {}, {}
    for name, function in CHECKS.items():
        if function not in done:
            try:
                function()
                done[function] = None
            except Exception:  # pylint: disable=broad-except
                done[function] = traceback.format_exc()
                print(done[function], file=sys.stderr, flush=True)  # others may wait for this rank for ever
        results[name] = done[function]
    hvd.shutdown()
    common.finish(results)


main()
