"""addend.torch.shadow: the training stays as it is, and the verdict is right."""

import io
import os

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import addend  # noqa: E402
import addend.torch  # noqa: E402
from addend.torch import _shadow  # noqa: E402
from tests.support.ports import free_port  # noqa: E402


def run_ranks(agent, body, **more):
    return agent.run_ranks(body, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), **more)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(30, 200)
        self.middle = torch.nn.Linear(200, 200)
        self.last = torch.nn.Linear(200, 4)

    def forward(self, x):
        return self.last(self.middle(self.first(x).relu()))


def make_model(**options):
    torch.manual_seed(2)
    return DistributedDataParallel(Net(), bucket_cap_mb=0.05, **options)


def train(model, steps, scale=1.0):
    """A few steps on each rank's own data; the final weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        (scale * model(torch.rand(8, 30, generator=generator)).square().mean()).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def shadows_a_training():
    dist.init_process_group("gloo")
    alone = train(make_model(), 6)
    model, out = make_model(), io.StringIO()
    watcher = addend.torch.shadow(model, steps=4, out=out)
    with model.no_sync():  # the hook is not called, and it is no step
        model(torch.zeros(1, 30)).sum().mul(0).backward()
    assert watcher.report is None and addend.torch.is_initialized()
    weights = train(model, 6)
    assert torch.equal(weights, alone), "shadow has changed the training"
    report = watcher.report
    assert report["steps"] == 4 and report["error"] is None and report["agree"], report
    assert 0 < report["largest_difference"] < 1e-6 and 0 < report["largest_relative_difference"] < 4e-7
    assert report["mismatched_nonfinite"] == 0
    assert report["worst"]["parameter"].split(".")[0] in ("first", "middle", "last")
    assert report["bytes"] == 4 * weights.numel() and report["ranks"] == 3
    assert report["ratio"] == pytest.approx(report["addend_s"] / report["group_s"]) and report["ratio"] > 0
    assert not addend.torch.is_initialized(), "what shadow has joined it leaves"
    if dist.get_rank() == 0:
        assert out.getvalue() == report["verdict"] + "\n"
        assert "agree within rounding" in out.getvalue() and "Recommendation: " in out.getvalue()
        assert "both shared" in out.getvalue()
    else:
        assert out.getvalue() == ""
    dist.destroy_process_group()


def test_the_training_keeps_its_bits_and_the_verdict_is_printed_once(start_agent):
    agent = start_agent(3)
    run_ranks(agent, shadows_a_training)
    assert agent.counts()["died"] == 0


def shadows_two_models_of_a_joined_process():
    dist.init_process_group("gloo")
    addend.torch.init()
    models = [make_model(gradient_as_bucket_view=True), make_model(find_unused_parameters=True)]
    watchers = [addend.torch.shadow(model, steps=2, out=io.StringIO()) for model in models]
    for model in models:
        train(model, 3)
    for watcher in watchers:
        assert watcher.report["agree"] and watcher.report["steps"] == 2, watcher.report
    assert addend.torch.is_initialized()
    assert not addend._core.declared_under("addend.shadow"), "tensors are left"
    addend.torch.shutdown()
    dist.destroy_process_group()


def test_a_process_that_has_joined_stays_in_the_job(start_agent):
    run_ranks(start_agent(2), shadows_two_models_of_a_joined_process)


def overflows():
    dist.init_process_group("gloo")
    model, out = make_model(), io.StringIO()
    watcher = addend.torch.shadow(model, steps=2, out=out)
    train(model, 2, scale=float("inf") if dist.get_rank() == 1 else 1.0)
    assert watcher.report["agree"] and watcher.report["mismatched_nonfinite"] == 0, watcher.report
    dist.destroy_process_group()


def test_infinite_gradients_are_infinite_on_both_sides(start_agent):
    run_ranks(start_agent(2), overflows)


def trains_where_nothing_can_be_joined():
    dist.init_process_group("gloo")
    alone = train(make_model(), 2)
    model, out = make_model(), io.StringIO()
    watcher = addend.torch.shadow(model, steps=5, out=out)
    assert watcher.report["steps"] == 0 and not watcher.report["agree"]
    assert torch.equal(train(model, 2), alone)
    assert "Addend failed, and the training was not disturbed" in watcher.report["verdict"]
    assert os.environ["ADDEND_SOCKET"] in watcher.report["error"]
    assert "do not switch" in watcher.report["verdict"]
    dist.destroy_process_group()


def test_without_an_agent_the_training_goes_on(start_agent, tmp_path):
    agent = start_agent(2)
    agent.socket = str(tmp_path / "nobody.sock")
    run_ranks(agent, trains_where_nothing_can_be_joined, ADDEND_CONNECT_TIMEOUT="0.2")


def goes_on_when_the_job_fails():
    dist.init_process_group("gloo")
    alone = train(make_model(), 6)
    model, out = make_model(), io.StringIO()
    watcher = addend.torch.shadow(model, steps=1000, out=out)
    weights = []

    def fail(*_):
        if dist.get_rank() == 0:
            with open(os.environ["TEST_FAIL"], "w") as pipe:
                pipe.write("go")
        with open(os.environ["TEST_FAILED"] + str(dist.get_rank())) as pipe:
            pipe.read()

    handle = model.register_forward_pre_hook(fail)
    model.register_forward_pre_hook(lambda *_: handle.remove())
    weights = train(model, 6)
    assert torch.equal(weights, alone)
    assert "rank 7 is gone" in watcher.report["error"] and "PeerLostError" in watcher.report["error"]
    assert "rank 7 is gone" in watcher.report["verdict"]
    dist.destroy_process_group()


def test_a_job_that_fails_disturbs_nothing(start_agent, tmp_path):
    import threading

    agent = start_agent(2)
    for name in ("fail", "failed0", "failed1"):
        os.mkfifo(tmp_path / name)

    def fail():
        with open(tmp_path / "fail") as pipe:
            pipe.read()
        agent.tell("fail 75 rank 7 is gone")
        for rank in range(2):
            with open(tmp_path / f"failed{rank}", "w") as pipe:
                pipe.write("go")

    thread = threading.Thread(target=fail)
    thread.start()
    run_ranks(agent, goes_on_when_the_job_fails, TEST_FAIL=str(tmp_path / "fail"),
              TEST_FAILED=str(tmp_path / "failed"))
    thread.join()


def refuses_what_does_not_fit():
    os.environ.update(WORLD_SIZE="1", RANK="0")
    dist.init_process_group("gloo")
    os.environ.update(WORLD_SIZE="2", RANK=os.environ["LOCAL_RANK"])
    with pytest.raises(TypeError, match="takes a DistributedDataParallel model, not Linear"):
        addend.torch.shadow(torch.nn.Linear(2, 2))
    model = make_model()
    with pytest.raises(ValueError, match="at least one step"):
        addend.torch.shadow(model, steps=0)
    watcher = addend.torch.shadow(model, out=io.StringIO())
    assert "its job has 2 ranks, and the process group 1" in watcher.report["error"]
    train(model, 1)


def test_unsupported_models_are_refused(start_agent):
    agent = start_agent(2)
    agent.run_ranks(refuses_what_does_not_fit, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")


# ---- the comparison, where Addend would be wrong ----


class Copy:
    """A bucket as the comparison sees it: two parameters of three elements."""

    index = 1

    def __init__(self, ours, theirs):
        self.values, self.buffer = torch.tensor(ours), torch.tensor(theirs)
        self.largest = torch.tensor([4.0])
        self.parameters = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(3))]


def compare(ours, theirs):
    comparison, copy = _shadow._Comparison(2), Copy(ours, theirs)
    comparison.add(copy, 6, {id(copy.parameters[0]): "a", id(copy.parameters[1]): "b"})
    report = _shadow._report(comparison, [(0.5, 1.0), (0.2, 0.1)], None)
    return {**report, "verdict": _shadow._verdict({**report, "ranks": 2, "bytes": 24})}


def test_a_difference_beyond_rounding_is_found_and_placed():
    report = compare([1.0, 2.0, 3.0, 4.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.00001, 0.0, 0.0])
    assert not report["agree"]
    assert report["worst"] == {"step": 7, "bucket": 1, "parameter": "b"}
    assert report["largest_difference"] == pytest.approx(1e-5, rel=0.1)
    assert report["largest_relative_difference"] == pytest.approx(2.5e-6, rel=0.1)
    assert "they differ by MORE than rounding" in report["verdict"] and "do not switch" in report["verdict"]


def test_rounding_of_cancelling_large_gradients_is_not_a_difference():
    report = compare([1e-7] * 6, [3e-7] * 6)  # the largest gradient is 4
    assert report["agree"] and "agree within rounding" in report["verdict"]


def test_equal_bits_are_reported_as_equal():
    nan, inf = float("nan"), float("inf")
    report = compare([1.0, nan, inf, -inf, 0.0, 2.0], [1.0, nan, inf, -inf, 0.0, 2.0])
    assert report["agree"] and "the same bits" in report["verdict"]
    assert "switch to addend.torch.ddp_comm_hook" in report["verdict"] and report["ratio"] == 0.5


@pytest.mark.parametrize("theirs", [1.0, float("inf"), float("-inf")])
def test_non_finite_elements_on_one_side_are_counted(theirs):
    report = compare([1.0, 1.0, 1.0, 1.0, float("nan"), 1.0], [1.0, 1.0, 1.0, 1.0, theirs, 1.0])
    assert not report["agree"] and report["mismatched_nonfinite"] == 1
    assert "1 elements are infinite or NaN on one side only" in report["verdict"]
    assert "in b at step 7" in report["verdict"]
