"""Horovod's functions on tensors, as Horovod documents them."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

import addend.torch as hvd  # noqa: E402
from addend import _core  # noqa: E402

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((), (0,), (3,), (2, 0, 3), (4, 5))


def same(result, expected):
    assert result.dtype == expected.dtype and result.shape == expected.shape, (result, expected)
    assert torch.equal(result, expected), (result, expected)


def reduces_on_two_ranks():
    hvd.init()
    rank = hvd.rank()
    for dtype in INTEGERS + FLOATS:
        for shape in SHAPES:
            mine = torch.full(shape, 3 * rank + 2, dtype=dtype)  # 2 and 5
            kept = mine.clone()
            for op, value in ((hvd.Sum, 7), (hvd.Min, 2), (hvd.Max, 5)):
                same(hvd.allreduce(mine, op=op), torch.full(shape, value, dtype=dtype))
            average = 3.5 if dtype.is_floating_point else 3
            same(hvd.allreduce(mine), torch.full(shape, average, dtype=dtype))
            named = hvd.allreduce(mine, average=False, name="%s %s" % (dtype, shape))
            same(named, torch.full(shape, 7, dtype=dtype))
            same(mine, kept)
            assert hvd.allreduce_(mine, op=hvd.Sum) is mine
            same(mine, torch.full(shape, 7, dtype=dtype))
    bools = torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])
    same(hvd.allreduce(bools[rank], op=hvd.Sum), torch.tensor([False, True, True, True]))
    same(hvd.allreduce(bools[rank], op=hvd.Min), torch.tensor([False, False, False, True]))
    wrapped = hvd.allreduce(torch.tensor([200, 1], dtype=torch.uint8), op=hvd.Sum)
    same(wrapped, torch.tensor([144, 2], dtype=torch.uint8))

    whole = torch.arange(24.0).reshape(4, 6) + rank
    for view in (whole.t(), whole[::2, 1::3], whole[:, 2]):
        same(hvd.allreduce(view, op=hvd.Sum), 2 * (view - rank) + 1)
    strided = whole.clone().t()
    assert hvd.allreduce_(strided, op=hvd.Sum) is strided
    same(strided, (2 * (whole - rank) + 1).t())

    # Factors: before the sum and after it; integers towards zero.
    scaled = hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    same(scaled, torch.tensor([3.0, 6.0]))
    same(hvd.allreduce(torch.tensor([3, -3]), op=hvd.Sum, prescale_factor=0.5), torch.tensor([2, -2]))
    same(hvd.allreduce(torch.tensor([3, 5]), op=hvd.Sum, postscale_factor=0.25), torch.tensor([1, 2]))

    # Groups.
    group = [torch.full((2,), 1.0 + rank), torch.full((3,), 4.0, dtype=torch.float64), torch.tensor(rank)]
    results = hvd.grouped_allreduce(group, op=hvd.Sum, compression=hvd.Compression.fp16)
    expected = [torch.full((2,), 3.0), torch.full((3,), 8.0, dtype=torch.float64), torch.tensor(1)]
    for one, other in zip(results, expected):
        same(one, other)
    handle = hvd.grouped_allreduce_async_(group, name="group")
    in_place = hvd.synchronize(handle)
    assert all(one is given for one, given in zip(in_place, group)) and hvd.poll(handle)
    same(group[0], torch.full((2,), 1.5))

    # A name that is used again while it is under way: both rounds, in order.
    first, second = torch.full((1000,), 1.0 + rank), torch.full((1000,), 10.0 + rank)
    handles = [hvd.allreduce_async_(one, name="twice", op=hvd.Sum) for one in (first, second)]
    assert hvd.synchronize(handles[1]) is second and hvd.synchronize(handles[0]) is first
    same(first, torch.full((1000,), 3.0))
    same(second, torch.full((1000,), 21.0))

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = hvd.allreduce(x * (rank + 1), op=hvd.Sum)
    (y * torch.tensor([1.0, 10.0]) * (rank + 1)).sum().backward()
    same(x.grad, torch.tensor([3.0, 30.0]) * (rank + 1))
    hvd.barrier()
    hvd.shutdown()


def test_allreduce_on_two_ranks(start_agent):
    start_agent(2).run_ranks(reduces_on_two_ranks)


def broadcasts_on_three_ranks():
    hvd.init()
    rank = hvd.rank()
    for dtype in INTEGERS + FLOATS + (torch.bool, torch.complex64, torch.complex128):
        for shape in SHAPES:
            mine = torch.full(shape, rank, dtype=dtype)
            expected = torch.full(shape, 2, dtype=dtype)
            same(hvd.broadcast(mine, 2), expected)
            same(mine, torch.full(shape, rank, dtype=dtype))
            assert hvd.broadcast_(mine, root_rank=2, name="b %s %s" % (dtype, shape)) is mine
            same(mine, expected)
    nothing = torch.full((3,), float("nan")).view(torch.int32) + rank  # other bits of the same NaN
    same(hvd.broadcast(nothing.view(torch.float32), 1).view(torch.int32), nothing - rank + 1)
    whole = torch.arange(12.0).reshape(3, 4) * rank
    view = whole.t()[1:]
    assert hvd.synchronize(hvd.broadcast_async_(view, 1)) is view
    same(whole[:, 1:], torch.arange(12.0).reshape(3, 4)[:, 1:])
    handles = [hvd.broadcast_async(torch.full((5,), 10 * i + rank), i, name="twice") for i in range(3)]
    for i, handle in reversed(list(enumerate(handles))):
        same(handle.wait(), torch.full((5,), 11 * i))

    for name in (None, "named"):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = hvd.broadcast(x * (rank + 1), 1, name)
        same(y.detach(), torch.tensor([2.0, 4.0]))
        (y * (rank + 1)).sum().backward()
        same(x.grad, torch.full((2,), 4.0 if rank == 1 else 0.0))  # the average of 2, 4 and 6, as with Horovod

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model.register_buffer("flag", torch.tensor(rank == 1))
    for given in (model, model.state_dict(), list(model.named_parameters()), list(model.parameters())):
        with torch.no_grad():
            model[0].weight.fill_(rank)
        hvd.broadcast_parameters(given, root_rank=1)
        same(model[0].weight.detach(), torch.ones(2, 3))
    assert model.flag.item()
    with pytest.raises(ValueError, match="twice"):
        hvd.broadcast_parameters([("a", torch.zeros(1)), ("a", torch.zeros(2))])
    for content in ("x", list(range(10000)), None):
        assert hvd.broadcast_object(content if rank == 2 else "ignored", 2, name="object") == content

    # Named and unnamed broadcasts stay declared; parameters and objects do not.
    left = _core.declared_under("addend.broadcast/")
    assert any("twice" in name for name in left) and not any("parameters" in n or "object" in n for n in left)
    hvd.shutdown()


def test_broadcast_on_three_ranks(start_agent):
    start_agent(3).run_ranks(broadcasts_on_three_ranks)


def gathers_on_three_ranks():
    hvd.init()
    rank = hvd.rank()
    for dtype in INTEGERS + FLOATS + (torch.bool, torch.complex64):
        expected = torch.cat([torch.full((i + 1, 3), i).to(dtype) for i in range(3)])
        same(hvd.allgather(torch.full((rank + 1, 3), rank).to(dtype)), expected)
    # Sizes change from call to call and include 0; the same name is under way twice.
    before = None
    for turn in range(12):
        sizes = [(rank + turn) % 3, (turn + 1) % 3]
        handles = [hvd.allgather_async(torch.full((n, 2), 10 * turn + rank), name="sizes") for n in sizes]
        second, first = hvd.synchronize(handles[1]), hvd.synchronize(handles[0])
        same(first, torch.cat([torch.full(((i + turn) % 3, 2), 10 * turn + i) for i in range(3)]))
        same(second, torch.cat([torch.full((sizes[1], 2), 10 * turn + i) for i in range(3)]))
        assert all(hvd.poll(one) for one in handles)
        before = before or len(_core.declared_under(""))
    assert len(_core.declared_under("")) == before, "declared tensors leak"
    # Ranks may wait in different orders.
    handles = {name: hvd.allgather_async(torch.tensor([rank]), name) for name in ("x", "y")}
    for name in ("x", "y") if rank == 0 else ("y", "x"):
        same(handles[name].wait(), torch.arange(3))
    group = [torch.full((rank, 2), 1.0), torch.tensor([rank], dtype=torch.int8)]
    for results in (hvd.grouped_allgather(group), hvd.grouped_allgather_async(group, "group").wait()):
        same(results[0], torch.ones(3, 2))
        same(results[1], torch.arange(3, dtype=torch.int8))
    same(hvd.allgather(torch.arange(6.0).reshape(2, 3).t()[: rank + 1])[:1], torch.tensor([[0.0, 3.0]]))
    objects = [{"rank": i, "long": "x" * (1000 * i)} for i in range(3)]
    assert hvd.allgather_object(objects[rank]) == objects
    assert hvd.allgather_object(objects[rank], name="objects") == objects

    for rows in (1, 2):  # the gradients' sizes change, too
        x = torch.full((rank + rows, 2), 1.0, requires_grad=True)
        y = hvd.allgather(x, name="differentiable")
        (y * torch.arange(float(y.shape[0]))[:, None] * (rank + 1)).sum().backward()
        first = sum(i + rows for i in range(rank))
        same(x.grad, 2 * torch.arange(float(first), float(first + rank + rows))[:, None].expand(-1, 2))

    dtype = torch.int32 if rank == 0 else torch.float32
    for other in (torch.zeros(2, 3 + rank), torch.zeros(2, 3, dtype=dtype), torch.zeros((2,) * (1 + rank))):
        with pytest.raises(hvd.MismatchError, match="rank 0 has .* but rank 1 has .*only the first"):
            hvd.allgather(other)
    same(hvd.allgather(torch.tensor([rank])), torch.arange(3))  # nothing is broken
    with pytest.raises(ValueError, match="not of 0"):
        hvd.allgather(torch.tensor(1.0))
    hvd.shutdown()


def test_allgather_on_three_ranks(start_agent):
    start_agent(3).run_ranks(gathers_on_three_ranks)


def test_unsupported_arguments_are_refused(one_rank):
    tensor = torch.zeros(2)

    def broadcast(tensor, process_set):
        return hvd.broadcast(tensor, 0, process_set=process_set)

    for call in (hvd.allreduce, hvd.allgather, broadcast):
        with pytest.raises(TypeError, match="must be an addend.torch.ProcessSet, not 'some'"):
            call(tensor, process_set="some")
        with pytest.raises(ValueError, match="ranks=.0.. was not added"):
            call(tensor, process_set=hvd.ProcessSet([0]))
        same(call(tensor, process_set=hvd.global_process_set), tensor)
    hvd.barrier(process_set=hvd.global_process_set)
    assert hvd.global_process_set.included() and hvd.global_process_set.size() == 1
    with pytest.raises(ValueError, match="either op or average"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    with pytest.raises(TypeError, match="must be a str"):
        hvd.allreduce(tensor, name=5)
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather):
        with pytest.raises(ValueError, match="at least one"):
            call([])
    hvd.allreduce(tensor, name="shaped")
    same(hvd.allreduce(torch.ones(3), name="shaped"), torch.ones(3))  # a name comes back with another shape
    with pytest.raises(ValueError, match="root_rank 1"):
        hvd.broadcast(tensor, 1)


def test_tensors_that_are_negative_or_conjugate_by_a_mark(one_rank):
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    same(hvd.allreduce(conjugate.imag), torch.tensor([-2.0, 4.0]))
    same(hvd.broadcast(conjugate.imag, 0), torch.tensor([-2.0, 4.0]))
    same(hvd.broadcast(conjugate, 0), conjugate)
    same(hvd.allgather(conjugate), conjugate)
    marked = conjugate.imag
    hvd.allreduce_(marked, postscale_factor=2.0)
    same(marked, torch.tensor([-4.0, 8.0]))


def test_horovods_query_functions(one_rank):
    assert (hvd.size(), hvd.local_size(), hvd.cross_size()) == (1, 1, 1)
    assert (hvd.rank(), hvd.local_rank(), hvd.cross_rank()) == (0, 0, 0)
    assert hvd.is_initialized() and hvd.is_homogeneous()
    for asked in (hvd.mpi_built, hvd.mpi_enabled, hvd.mpi_threads_supported, hvd.nccl_built):
        assert not asked()
    assert hvd.gloo_built() and hvd.gloo_enabled()  # scripts insist on a back end


def test_an_allgather_can_be_waited_for_with_a_limit(one_rank):
    one_rank.tell("hold")
    handle = hvd.allgather_async(torch.tensor([1]), name="slow")
    assert not hvd.poll(handle)
    with pytest.raises(hvd.WaitTimeoutError, match="slow"):
        handle.wait(timeout=0.05)
    one_rank.tell("release")
    same(handle.wait(), torch.tensor([1]))


@pytest.mark.parametrize("operation", ["allreduce", "broadcast", "allgather"])
def test_the_result_of_an_unnamed_operation_is_the_callers_alone(one_rank, operation):
    arguments = (torch.ones(10), 0) if operation == "broadcast" else (torch.ones(10),)
    result = getattr(hvd, operation)(*arguments)
    remembered = weakref.ref(result)
    del result
    gc.collect()
    assert remembered() is None
