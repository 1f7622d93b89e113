"""The package `addend` on NumPy arrays."""

import gc
import os
import threading

import numpy as np
import pytest

import addend

DTYPES = ("float32", "float64", "float16", "int32", "int64")


def sums_on_three_ranks():
    addend.init()
    rank = addend.rank()
    assert (addend.size(), addend.local_rank(), addend.local_size()) == (3, rank, 3)
    assert (addend.node_rank(), addend.num_nodes()) == (0, 1)
    for dtype in DTYPES:
        for count in (0, 1, 3, 1023):
            array = (np.arange(count) + rank).astype(dtype)
            for op, expected in (
                (addend.Sum, 3 * np.arange(count) + 3),
                (addend.Average, np.arange(count) + 1),
                (addend.Min, np.arange(count)),
                (addend.Max, np.arange(count) + 2),
            ):
                result = addend.push_pull(array, f"{dtype}/{count}/{op}", op)
                assert result.dtype == array.dtype
                np.testing.assert_array_equal(result, expected.astype(dtype))
    addend.barrier()
    addend.shutdown()


def test_every_rank_receives_the_result(start_agent):
    agent = start_agent(3)
    agent.run_ranks(sums_on_three_ranks)
    assert agent.counts()["died"] == 0


def broadcasts_on_three_ranks():
    addend.init()
    rank = addend.rank()
    for dtype in ("float64", "bool", "uint8", "complex128", "int16", "datetime64[s]"):
        for shape in ((), (3,), (2, 5), (0,)):
            values = np.full(shape, rank).astype(dtype)
            result = addend.broadcast(values, 1, "b")
            assert result.dtype == values.dtype and result.shape == shape
            np.testing.assert_array_equal(result, np.full(shape, 1).astype(dtype))
    mean = addend.push_pull(np.float32(rank), "b")  # the same name as the broadcast's
    assert mean == 1
    addend.shutdown()


def test_broadcast_gives_the_roots_bytes(start_agent):
    agent = start_agent(3)
    agent.run_ranks(broadcasts_on_three_ranks)


def test_bfloat16_travels_as_uint16(one_rank):
    values = np.array([1.5, -2.25, 3e38], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(
        addend.push_pull(upper, "b", addend.Sum, dtype="bfloat16"), upper
    )
    with pytest.raises(TypeError, match="uint16"):
        addend.push_pull(values, "b2", dtype="bfloat16")


def test_arrays_of_any_layout_are_taken(one_rank):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for i, array in enumerate((base.T, base[::2, 1::2], base[::-1], base.astype(">f4"), base[1, 1])):
        result = addend.push_pull(array, f"layout {i}")
        assert result.shape == array.shape and result.dtype == np.float32
        np.testing.assert_array_equal(result, array)


def test_the_callers_array_stays_as_it_is(one_rank):
    array = np.ones(5, np.float32)
    result = addend.push_pull(array, "t")
    result[:] = 7
    assert (array == 1).all()


def test_results_of_former_rounds_are_kept(one_rank):
    handles = [addend.push_pull_async(np.full(4, i, np.int64), "t") for i in range(10)]
    for i, handle in reversed(list(enumerate(handles))):
        np.testing.assert_array_equal(addend.synchronize(handle), np.full(4, i))
        np.testing.assert_array_equal(addend.synchronize(handle), np.full(4, i))


def test_temporary_arrays_live_until_they_are_sent(one_rank):
    one_rank.tell("hold")
    handles = []
    for i in range(20):
        handles.append(addend.push_pull_async(np.full(100000, i, np.float32), "t"))
    dropped = addend.push_pull_async(np.full(100000, 20, np.float32), "t")
    last = addend.push_pull_async(np.full(100000, 21, np.float32), "t")
    del dropped
    gc.collect()
    one_rank.tell("release")
    for i, handle in enumerate(handles):
        assert (addend.synchronize(handle) == i).all()
    assert (addend.synchronize(last) == 21).all()


def test_arrays_of_empty_are_not_copied(one_rank):
    array = addend.empty((3, 4), np.float32, "zero copy", addend.Sum)
    before = addend.statistics()
    for i in range(4):
        array[:] = i
        handle = addend.push_pull_async(array, "zero copy", addend.Sum)
        view = addend.synchronize(handle, copy=False)
        assert not view.flags.writeable and (view == i).all()
    after = addend.statistics()
    assert after["copied_in_bytes"] == before["copied_in_bytes"]
    assert after["copied_out_bytes"] == before["copied_out_bytes"]
    assert after["rounds"] == before["rounds"] + 4
    with pytest.raises(ValueError):
        view[0] = 1


def test_handles_of_empty_keep_their_results_when_they_must(one_rank):
    array = addend.empty(4, np.int32, "t", addend.Sum)
    handles = []
    for i in range(6):
        array[:] = i
        handles.append(addend.push_pull_async(array, "t", addend.Sum))
        while not addend.poll(handles[-1]):
            pass
    for i, handle in enumerate(handles):
        np.testing.assert_array_equal(addend.synchronize(handle), np.full(4, i))
    one_rank.tell("hold")
    pending = addend.push_pull_async(array, "t", addend.Sum)
    with pytest.raises(addend.Error, match="still being summed"):
        addend.push_pull_async(array, "t", addend.Sum)
    one_rank.tell("release")
    addend.synchronize(pending)


def test_arrays_outlive_the_job(start_agent):
    agent = start_agent(1)
    addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    array = addend.empty(1000, np.float64, "t")
    array[:] = 3
    view = addend.synchronize(addend.push_pull_async(array, "t"), copy=False)
    addend.undeclare("t")
    addend.shutdown()
    assert (array == 3).all() and (view == 3).all()


def test_undeclared_names_may_change_their_shape(one_rank):
    for count in range(1, 10):
        addend.push_pull(np.ones(count, np.float32), "t")
        addend.undeclare("t")
    addend.declare("t", (2, 2), "float64", addend.Max)
    assert (addend.push_pull(np.ones((2, 2)), "t", addend.Max) == 1).all()
    assert one_rank.counts()["tensors"] == 1
    addend.undeclare("never declared")


def test_any_utf8_name_is_fine(one_rank):
    for name in ("λ₂ 🙂", "a\nb", " ", "x" * 4096):
        addend.push_pull(np.ones(1, np.float32), name)
    for name, error in (("", addend.Error), ("x" * 4097, addend.Error), ("a\0b", ValueError)):
        with pytest.raises(error):
            addend.push_pull(np.ones(1, np.float32), name)
    with pytest.raises(TypeError):
        addend.push_pull(np.ones(1, np.float32), b"bytes")


def test_unsupported_types_are_type_errors(one_rank):
    for dtype in ("complex64", "bool", "uint8", "uint16", "int16", "U3", "O"):
        with pytest.raises(TypeError, match="cannot sum"):
            addend.push_pull(np.zeros(2, dtype), "t")
    with pytest.raises(TypeError, match="op must be"):
        addend.push_pull(np.zeros(2), "t", "sum")


def test_a_name_may_come_back_with_another_shape(one_rank):
    addend.push_pull(np.zeros(2, np.float32), "t")
    assert addend.push_pull(np.ones(3), "t").tolist() == [1.0, 1.0, 1.0]
    one_rank.tell("hold")
    handle = addend.push_pull_async(np.ones(3), "t")
    with pytest.raises(addend.Error, match='"t" cannot come back with another shape.* while'):
        addend.push_pull(np.ones(4), "t")
    one_rank.tell("release")
    addend.synchronize(handle)


def test_timeouts_leave_the_operation_alone(one_rank):
    one_rank.tell("hold")
    handle = addend.push_pull_async(np.ones(3), "t")
    assert not addend.poll(handle)
    with pytest.raises(addend.WaitTimeoutError, match="0.3 s") as caught:
        addend.synchronize(handle, timeout=0.3)
    assert isinstance(caught.value, TimeoutError) and caught.value.code == 1
    one_rank.tell("release")
    assert (addend.synchronize(handle) == 1).all()


def test_failures_have_their_class_and_code(start_agent):
    for code, error in (
        (75, addend.PeerLostError),
        (78, addend.StalledError),
        (65, addend.MismatchError),
        (72, addend.Error),
    ):
        agent = start_agent(1)
        addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
        agent.tell("hold")
        handle = addend.push_pull_async(np.ones(3), "t")
        agent.tell(f"fail {code} rank 3 on node 1 is gone")
        with pytest.raises(error, match="rank 3 on node 1 is gone") as caught:
            addend.synchronize(handle)
        assert caught.value.code == code
        with pytest.raises(error):
            addend.push_pull(np.ones(3), "u")
        addend.shutdown()
        agent.close()
        os.path.exists(agent.socket) and os.unlink(agent.socket)


def test_a_lost_agent_is_a_lost_peer(one_rank):
    one_rank.tell("hold")
    handle = addend.push_pull_async(np.ones(3), "t")
    one_rank.tell("close")
    with pytest.raises(addend.PeerLostError, match="closed the connection"):
        addend.synchronize(handle)


def test_calls_outside_a_job_raise_an_error(start_agent):
    for call in (addend.rank, addend.barrier, addend.statistics, lambda: addend.undeclare("t")):
        with pytest.raises(addend.Error, match=r"addend\.init\(\)") as caught:
            call()
        assert caught.value.code == 71
    assert not addend.is_initialized()
    addend.shutdown()
    agent = start_agent(1)
    addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    assert addend.is_initialized()
    addend.init()  # once more does nothing
    with pytest.raises(addend.Error, match="already"):
        addend.init("/another.sock")
    agent.tell("hold")
    handle = addend.push_pull_async(np.ones(3), "t")
    addend.shutdown()
    with pytest.raises(addend.Error, match="shutdown") as caught:
        addend.synchronize(handle)
    assert caught.value.code == 71


def test_a_missing_agent_is_an_error(tmp_path):
    with pytest.raises(addend.Error, match="no agent at") as caught:
        addend.init(tmp_path / "nobody.sock", rank=0, size=1, connect_timeout=0.2)
    assert caught.value.code == 76


def test_a_refusal_raises_the_agents_message(start_agent):
    agent = start_agent(1)
    agent.tell("refuse 65 this agent serves job blue, not red")
    with pytest.raises(addend.MismatchError, match="job blue, not red"):
        addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)


def test_priorities_reach_the_agent(one_rank):
    for priority in (-5, 0, 7):
        addend.synchronize(
            addend.push_pull_async(np.ones(1), f"t{priority}", addend.Sum, priority)
        )
    assert one_rank.counts()["priorities"] == [-5, 0, 7]


def test_threads_may_share_the_job(one_rank):
    errors = []

    def work(t):
        try:
            for i in range(50):
                value = np.full(64, t * i, np.float64)
                assert (addend.push_pull(value, f"{t}") == value).all()
                addend.push_pull(np.ones(1), f"shared {i}")
        except Exception as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_forked_child_is_outside_the_job(one_rank):
    handle = addend.push_pull_async(np.ones(3), "t")
    addend.synchronize(handle)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert not addend.is_initialized()
            for call in (addend.rank, lambda: addend.push_pull(np.ones(3), "t")):
                with pytest.raises(addend.Error, match="forked") as caught:
                    call()
                assert caught.value.code == 71
            del handle
            addend.shutdown()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert (addend.push_pull(np.ones(3), "t") == 1).all()
    assert one_rank.counts()["connected"] == 1


def test_errors_survive_pickling():
    import pickle

    error = pickle.loads(pickle.dumps(addend.PeerLostError("rank 3 died", 75)))
    assert type(error) is addend.PeerLostError and error.code == 75 and str(error) == "rank 3 died"
