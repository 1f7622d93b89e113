"""addend.torch: tensors, and DistributedDataParallel with the hook."""

import os

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import addend.torch  # noqa: E402
from addend import _core  # noqa: E402
from addend.torch import _names  # noqa: E402
from tests.support.ports import free_port  # noqa: E402

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
)


def start():
    """The start of a training script."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 20000  # by default the small models here fit into a single bucket
    dist.init_process_group("gloo")
    addend.torch.init()


def sums_on_two_ranks():
    addend.torch.init()
    rank = addend.torch.rank()
    for dtype in DTYPES:
        for shape in ((), (3,), (0,), (4, 5)):
            tensor = torch.full(shape, rank + 1).to(dtype)
            name = f"{dtype}/{shape}"
            assert torch.equal(
                addend.torch.push_pull(tensor, average=False, name=name), torch.full_like(tensor, 3)
            )
            assert torch.equal(tensor, torch.full_like(tensor, rank + 1))
    strided = torch.arange(12.0).reshape(3, 4).t()[1:]
    assert torch.equal(addend.torch.push_pull(strided, name="strided"), strided)
    parameter = torch.nn.Parameter(torch.ones(3) * rank)
    assert torch.equal(addend.torch.push_pull(parameter, name="parameter"), torch.full((3,), 0.5))
    addend.torch.barrier()
    addend.torch.shutdown()


def test_every_rank_receives_the_result(start_agent):
    start_agent(2).run_ranks(sums_on_two_ranks)


def broadcasts_on_two_ranks():
    addend.torch.init()
    rank = addend.torch.rank()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
    model.register_buffer("flags", torch.tensor([rank == 1, True, False]))
    model.register_buffer("strided", torch.rand(4, 6).t())
    addend.torch.broadcast_parameters(model.state_dict(), root_rank=1)
    for name, tensor in model.state_dict().items():
        sum_ = addend.torch.push_pull(tensor.double(), False, "check/" + name)
        assert torch.equal(sum_, 2 * tensor.double()), name
    assert torch.equal(model.flags, torch.tensor([True, True, False]))
    addend.torch.broadcast_parameters(model.named_parameters())
    value = addend.torch.broadcast(torch.tensor(rank, dtype=torch.uint8), 1, "scalar")
    assert value == 1 and value.dtype == torch.uint8
    addend.torch.shutdown()


def test_parameters_are_those_of_the_root(start_agent):
    start_agent(2).run_ranks(broadcasts_on_two_ranks)


def states_on_two_ranks():
    addend.torch.init()
    rank = addend.torch.rank()
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    for _ in range(rank):  # rank 0 has no state yet
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    value = addend.torch.broadcast_object({"epoch": 3, "rank": rank}, root_rank=1)
    assert value == {"epoch": 3, "rank": 1}
    addend.torch.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == 0.2
    momentum = optimizer.state[model.weight]["exp_avg"]
    assert momentum.abs().sum() > 0
    assert torch.equal(addend.torch.push_pull(momentum, name="check"), momentum)

    state = addend.torch.ElasticState(model, optimizer, step=rank, best=float(rank))
    state.sync()  # rank 1 has trained longer
    assert (state.step, state.best) == (1, 1.0)
    assert torch.equal(addend.torch.push_pull(model.weight.detach(), name="weight"), model.weight)
    assert not state.commit(), "nobody waits"
    assert addend.torch.nodes_present() == addend.torch.num_nodes()
    addend.torch.shutdown()


def test_states_are_those_of_the_root_or_of_the_rank_with_most_steps(start_agent):
    start_agent(2).run_ranks(states_on_two_ranks)


def test_an_elastic_state_keeps_its_own_names():
    with pytest.raises(ValueError, match="'commit'"):
        addend.torch.ElasticState(commit=1)


def test_the_least_recently_used_unnamed_operation_is_forgotten(one_rank, monkeypatch):
    del one_rank
    monkeypatch.setattr(_names, "_KEPT", 6)
    for length in (1, 2, 1, 1, 1, 3, 1, 4):  # lengths 1 to 4 have four names each at most
        addend.torch.allreduce(torch.ones(length))
    kept = {name.split("[")[1] for name in _core.declared_under("addend.unnamed/")}
    assert kept == {"1]/0/", "1]/1/", "1]/2/", "1]/3/", "3]/0/", "4]/0/"}, "the name of length 2 is the oldest"


def test_unsupported_types_are_type_errors(one_rank):
    for tensor, reason in (
        (torch.zeros(2, dtype=torch.complex64), "cannot sum torch.complex64"),
        (torch.zeros(2, device="meta"), "on meta"),
        (torch.zeros(2).to_sparse(), "dense"),
        ([1.0, 2.0], "takes tensors"),
    ):
        with pytest.raises(TypeError, match=reason):
            addend.torch.push_pull(tensor, name="t")
    with pytest.raises(TypeError, match="state_dict"):
        addend.torch.broadcast_parameters([("a", 2)])
    with pytest.raises(ValueError, match="root_rank 1"):
        addend.torch.broadcast(torch.zeros(2), 1, "t")


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(30, 200), torch.nn.ReLU(), torch.nn.Linear(200, 200), torch.nn.Linear(200, 4)
    )


def train(state_of, hook=None, steps=5):
    """Trains small buckets for a few steps; the final weights. DDP's own all-reduce without hook."""
    torch.manual_seed(2)
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.05)
    if hook is not None:
        model.register_comm_hook(state_of(model), hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        inputs = torch.rand(8, 30, generator=generator)
        model(inputs).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def reference_hook(_, bucket):
    """Sums in rank order on every rank, by other means than Addend."""
    buffer = bucket.buffer()
    gathered = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, buffer)
    total = gathered[0]
    for other in gathered[1:]:
        total = total + other
    future = torch.futures.Future()
    future.set_result(total / dist.get_world_size())
    return future


def trains_like_the_reference():
    start()
    reference = train(lambda model: None, reference_hook)
    ours = train(addend.torch.HookState, addend.torch.ddp_comm_hook)
    assert torch.equal(ours, reference), (ours - reference).abs().max()
    without_state = train(lambda model: None, addend.torch.ddp_comm_hook)
    assert torch.equal(without_state, reference)
    addend.torch.shutdown()
    dist.destroy_process_group()


def test_training_gives_the_references_weights_bit_for_bit(start_agent):
    agent = start_agent(3)
    agent.run_ranks(
        trains_like_the_reference, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())
    )
    counts = agent.counts()
    assert counts["died"] == 0
    # The last bucket of a pass has the highest priority.
    assert max(counts["priorities"]) >= 1


def forgets_former_buckets():
    start()
    state = []

    def state_of(model):
        state.append(addend.torch.HookState(model))
        return state[0]

    seen = []

    def hook(state, bucket):
        future = addend.torch.ddp_comm_hook(state, bucket)
        if bucket.is_last():
            seen.append(set(state._declared))
        return future

    train(state_of, hook)
    assert seen[0] != seen[-1], "DDP did not rebuild its buckets: the test has lost its point"
    assert seen[-1] == seen[-2]
    for name in seen[0] - seen[-1]:
        assert name not in addend._core._state.tensors
    addend.torch.shutdown()
    dist.destroy_process_group()


def test_buckets_of_the_first_step_are_undeclared(start_agent):
    agent = start_agent(2)
    agent.run_ranks(forgets_former_buckets, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))


def backward_raises():
    start()
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.05)
    model.register_comm_hook(addend.torch.HookState(model), addend.torch.ddp_comm_hook)
    for step in range(1000):
        try:
            model(torch.rand(8, 30)).square().mean().backward()
        except addend.PeerLostError as error:
            assert "rank 7 is gone" in str(error)
            print("raised", flush=True)
            os._exit(0)
        if step == 2:
            print("under way", flush=True)
            agent = os.environ["TEST_AGENT_PIPE"]
            if addend.torch.rank() == 0:
                with open(agent, "w") as pipe:
                    pipe.write("go")
    os._exit(1)


def test_backward_raises_the_jobs_error(start_agent, tmp_path):
    import threading

    agent = start_agent(2)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def fail():
        with open(pipe) as opened:
            opened.read()
        agent.tell("fail 75 rank 7 is gone")

    thread = threading.Thread(target=fail)
    thread.start()
    outputs = agent.run_ranks(
        backward_raises,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()),
        TEST_AGENT_PIPE=str(pipe),
    )
    thread.join()
    assert all("raised" in output for output in outputs)


def loads_data_in_forked_workers():
    start()
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    model.register_comm_hook(addend.torch.HookState(model), addend.torch.ddp_comm_hook)
    data = [torch.full((3,), float(i)) for i in range(64)]
    for _ in range(2):
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)
        for batch in loader:
            model(batch).mean().backward()
    addend.torch.shutdown()
    dist.destroy_process_group()


def test_forked_data_loaders_disturb_nothing(start_agent):
    agent = start_agent(2)
    agent.run_ranks(
        loads_data_in_forked_workers, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port())
    )
    assert agent.counts()["died"] == 0


def fails_with_a_group_of_another_size():
    os.environ.update(WORLD_SIZE="1", RANK="0")
    dist.init_process_group("gloo")
    os.environ.update(WORLD_SIZE="2", RANK=os.environ["LOCAL_RANK"])
    addend.torch.init()
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    model.register_comm_hook(addend.torch.HookState(model), addend.torch.ddp_comm_hook)
    with pytest.raises(ValueError, match="works on 1 ranks, but this Addend job has 2"):
        model(torch.rand(2, 3)).mean().backward()
    addend.torch.shutdown()


def test_a_group_of_another_size_is_refused(start_agent):
    agent = start_agent(2)
    agent.run_ranks(
        fails_with_a_group_of_another_size, MASTER_ADDR="127.0.0.1", MASTER_PORT="0"
    )
