"""The hook's state: checkpoints of the compressions' state, and errors that backward() raises."""

import copy
import itertools
import os
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import addend  # noqa: E402
import addend.torch  # noqa: E402
from addend.torch.compression import OneBit, TopK  # noqa: E402
from tests.support.ddp_ranks import (  # noqa: E402
    COMPRESSIONS,
    Network,
    RANKS,
    check_same_everywhere,
    flat,
    loss_of,
    make,
    run,
    start,
    step_with,
    stop,
)


# ---- checkpoints ----


def trains_from_a_checkpoint():
    """Six steps, whose last three a second process repeats from the first process's checkpoint."""
    start()
    folder, load = os.environ["TEST_FOLDER"], os.environ["TEST_LOAD"] == "1"
    for name in COMPRESSIONS:
        path = "%s/%s.%d" % (folder, name.replace(" ", "_"), addend.torch.rank())
        # The buckets that DDP begins with are those it stays with.
        model, state, optimizer = make(name, find_unused_parameters=True)
        if load:
            saved = torch.load(path + ".3")
            model.module.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            state.load_state_dict(saved["state"])
        for step in range(3 if load else 0, 6):
            step_with(model, state, optimizer, step, detour=True)
            if step == 2:
                torch.save(
                    {
                        "model": model.module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "state": state.state_dict(),
                    },
                    path + ".3",
                )
        weights = check_same_everywhere(model)
        if load:
            assert torch.equal(weights, torch.load(path + ".6")), name
        else:
            torch.save(weights, path + ".6")
    stop()


def test_a_loaded_checkpoint_gives_the_same_bits(start_agent, tmp_path):
    agent = start_agent(RANKS)
    for load in ("0", "1"):
        run(agent, trains_from_a_checkpoint, TEST_FOLDER=str(tmp_path), TEST_LOAD=load)


def a_pickled_state_goes_on():
    start()
    for name in COMPRESSIONS:
        model, state, optimizer = make(name, find_unused_parameters=True)
        for step in range(3):
            step_with(model, state, optimizer, step, detour=True)
        resumed = DistributedDataParallel(Network(), bucket_cap_mb=0.005, find_unused_parameters=True)
        resumed.module.load_state_dict(model.module.state_dict())
        other = pickle.loads(pickle.dumps(state))
        other.attach(resumed)
        resumed.register_comm_hook(other, addend.torch.ddp_comm_hook)
        momentum = torch.optim.SGD(resumed.parameters(), lr=0.05, momentum=0.9)
        momentum.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # newer PyTorch shares the buffers
        for step in range(3, 6):
            step_with(model, state, optimizer, step, detour=True)
            step_with(resumed, other, momentum, step, detour=True)
        assert torch.equal(flat(model), flat(resumed)), name
    stop()


def test_a_pickled_state_goes_on_with_the_same_bits(start_agent):
    run(start_agent(RANKS), a_pickled_state_goes_on)


def test_a_state_of_another_compression_is_refused():
    model = Network()
    saved = addend.torch.HookState(model, OneBit()).state_dict()
    with pytest.raises(ValueError, match="one of OneBit, but this HookState has TopK"):
        addend.torch.HookState(model, TopK()).load_state_dict(saved)
    with pytest.raises(TypeError, match="compression must be"):
        addend.torch.HookState(model, "fp16")


# ---- errors ----


def backward_says_what_is_wrong():
    start()

    def error_of(model):
        with pytest.raises(ValueError) as caught:
            loss_of(model, 0, detour=True).backward()
        return str(caught.value)

    def with_hook(state, hook):
        model = DistributedDataParallel(Network(), bucket_cap_mb=0.005)
        model.register_comm_hook(state, hook)
        return model

    nameless = addend.torch.HookState(compression=OneBit())
    assert "has no model" in error_of(with_hook(nameless, addend.torch.ddp_comm_hook))
    model, state, _ = make("top k")
    unpickled = pickle.loads(pickle.dumps(state))
    assert "attach(model)" in error_of(with_hook(unpickled, addend.torch.ddp_comm_hook))
    for name in ("fp16", "top k"):
        model, _, _ = make(name, addend.torch.fp16_compress_hook)
        assert "has a compression already" in error_of(model)
    model, state, _ = make("top k")
    state.load_state_dict(
        {"compression": "TopK", "state": {"residuals": {"first.weight": torch.zeros(3)}}}
    )
    assert "3 values are kept of the parameter 'first.weight', which has 400" in error_of(model)
    stop()


def test_backward_raises_the_errors_of_a_compression(start_agent):
    run(start_agent(RANKS), backward_says_what_is_wrong)


def backward_raises_the_jobs_error():
    start()
    left = [make(name) for name in COMPRESSIONS]
    for one in left:
        for step in range(2):  # in the second step DDP rebuilds its buckets, through gloo
            step_with(*one, step, detour=True)
    addend.torch.barrier()
    if addend.torch.rank() == 0:
        with open(os.environ["TEST_PIPE"], "w", encoding="utf-8") as pipe:
            pipe.write("go")
    with pytest.raises(addend.PeerLostError, match="rank 7 is gone"):
        for one in itertools.cycle(left):
            step_with(*one, 2, detour=True)
    left.remove(one)  # DistributedDataParallel itself refuses the next pass of this model
    for one in left:
        with pytest.raises(addend.PeerLostError, match="rank 7 is gone"):
            step_with(*one, 3, detour=True)
    print("raised", flush=True)
    os._exit(0)


def test_backward_raises_the_jobs_error_with_every_compression(start_agent, tmp_path):
    agent = start_agent(RANKS)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def fail():
        with open(pipe, encoding="utf-8") as opened:
            opened.read()
        agent.tell("fail 75 rank 7 is gone")

    thread = threading.Thread(target=fail)
    thread.start()
    outputs = run(agent, backward_raises_the_jobs_error, TEST_PIPE=str(pipe))
    thread.join()
    assert all("raised" in output for output in outputs)
