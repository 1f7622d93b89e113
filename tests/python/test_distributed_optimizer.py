"""DistributedOptimizer: the weights of a reference that adds up all gradients itself, and Horovod's rules."""

import copy
import gc
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")

import addend.torch as hvd  # noqa: E402
from addend import _core  # noqa: E402
from addend.torch import _buckets  # noqa: E402
from addend.torch.compression import Scheme  # noqa: E402
from tests.python.reference_training import HalfOfIt, Net, adam, loss_of  # noqa: E402
from tests.python.reference_training import reference, sgd, weights  # noqa: E402
from tests.support.processes import eventually  # noqa: E402


def train(make, steps=4, passes=1, between=None, **options):
    model = Net()
    optimizer = hvd.DistributedOptimizer(
        make(model), named_parameters=model.named_parameters(), backward_passes_per_step=passes, **options
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for i in range(passes):
            loss_of(model, hvd.rank(), step * passes + i).backward()
        if between is None:
            optimizer.step()
        else:
            optimizer.synchronize()
            between([p.grad for p in model.parameters() if p.grad is not None])
            with optimizer.skip_synchronize():
                optimizer.step()
        scheduler.step()
    return weights(model)


class Plain(Scheme):
    """A scheme that changes nothing and records its calls."""

    def __init__(self):
        self.calls = []
        self.first = self.last = None

    def start(self, bucket):
        self.calls.append(bucket.name)
        self.first = self.first or bucket
        self.last = bucket
        covered = [(part.start, part.stop) for part in bucket.parts]
        assert covered[0][0] == 0 and covered[-1][1] == bucket.buffer.numel()
        return hvd.allreduce_async_(bucket.buffer, name=bucket.name, priority=bucket.priority)

    def stepping(self, optimizer, names):
        assert names[optimizer.param_groups[0]["params"][0]] == "never" and len(names) == 10
        self.calls.append("step")
        return super().stepping(optimizer, names)


def trains_on_three_ranks():
    torch.set_num_threads(1)
    hvd.init()

    def same(result, expected):
        assert torch.equal(result, expected), (result - expected).abs().max()

    def close(result, expected, tolerance):
        assert torch.allclose(result, expected, rtol=0, atol=tolerance) and not torch.equal(result, expected)
        same(hvd.broadcast(result, 1), result)

    def clip(grads):
        norm = torch.stack([g.norm() for g in grads]).norm()
        for g in grads:
            g.mul_(0.01 / norm)

    for make in (sgd, adam):
        expected = reference(make)
        same(train(make), expected)
        same(train(make, passes=2), reference(make, passes=2))
        close(train(make, compression=hvd.Compression.fp16), expected, 2e-2)
    expected = reference(sgd)
    same(train(sgd, between=clip), reference(sgd, between=clip))
    same(train(sgd, op=hvd.Sum), reference(sgd, total=lambda t, n: t))
    same(train(sgd, gradient_predivide_factor=2.0), expected)  # a power of two changes no bits here
    same(train(sgd, groups=2, num_groups=1, process_set=hvd.global_process_set), expected)
    same(train(sgd, compression=HalfOfIt), train(sgd, compression=HalfOfIt()))
    close(train(sgd, compression=HalfOfIt), expected, 1e-5)

    # A scheme gets buckets of equal names on all ranks, in the same order.
    _buckets._BYTES = 300
    plain = Plain()
    same(train(sgd, compression=plain), expected)
    buckets = plain.calls.index("step")
    assert buckets > 2 and plain.calls == 4 * plain.calls[: buckets + 1]
    assert plain.first.parts[0].name == "even.bias" and plain.last.parts[-1].name == "never"
    assert plain.last.priority > plain.first.priority
    assert hvd.allgather_object(plain.calls) == 3 * [plain.calls]

    # An infinity of a single rank reaches all ranks, and skipping the step is harmless.
    model = torch.nn.Linear(2, 1)
    torch.nn.init.ones_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    for step in range(2):
        scale = float("inf") if hvd.rank() == 1 and step == 0 else 1.0
        (model(torch.ones(1, 2)) * scale).sum().backward()
        optimizer.synchronize()
        finite = bool(torch.isfinite(model.weight.grad).all())
        assert finite == (step == 1)
        if finite:
            with optimizer.skip_synchronize():
                optimizer.step()
        model.zero_grad() if step == 0 else optimizer.zero_grad()
    same(model.weight.detach(), torch.zeros(1, 2))

    def closure():
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 2)) * hvd.rank()).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert torch.isfinite(loss)
    same(model.weight.detach(), torch.full((1, 2), -1.0))
    hvd.shutdown()


def test_training_gives_the_references_weights_bit_for_bit(start_agent):
    start_agent(3).run_ranks(trains_on_three_ranks)


def wrapped(one_rank, **options):
    del one_rank
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **options)
    return model, optimizer


def backward(model):
    model(torch.ones(2, 3)).sum().backward()


def test_it_is_an_optimizer_of_the_users_class(one_rank):
    model = torch.nn.Linear(3, 1)
    plain = torch.optim.Adam(model.parameters(), lr=0.1)
    early = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)  # made before, steps all the same
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, torch.optim.Adam) and type(optimizer).__name__ == "Adam"
    late = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    backward(model)
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        early.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    late.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    state = pickle.loads(pickle.dumps(optimizer.state_dict()))
    assert state["state"][0]["step"] == 1
    optimizer.load_state_dict(state)
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert optimizer.state_dict()["state"][0]["step"] == 2
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for one in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(one) is torch.optim.Adam and one.state_dict()["param_groups"][0]["lr"] == pytest.approx(0.025)
        one.step()


def test_gradients_travel_during_the_backward_pass_first_layers_first(one_rank):
    model, optimizer = wrapped(one_rank)
    one_rank.tell("hold")
    backward(model)
    # A control round, then a push for every parameter, by how late the forward pass needs it.
    priorities = eventually(lambda: len(one_rank.counts()["priorities"]) == 5 and one_rank.counts()["priorities"])
    assert sorted(priorities) == [-3, -2, -1, 0, 1]
    with pytest.raises(AssertionError, match="between backward"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="skip_synchronize"), optimizer.skip_synchronize():
        optimizer.step()
    with pytest.raises(AssertionError, match="between backward"):
        optimizer.set_backward_passes_per_step(2)
    one_rank.tell("release")
    optimizer.step()
    optimizer.zero_grad()


def test_gradients_are_copied_only_to_the_agent(one_rank):
    model, optimizer = wrapped(one_rank)
    size = sum(p.numel() for p in model.parameters()) * 4
    # A parameter without a gradient adds nothing to the sent bytes.
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1000))]})
    before = hvd.statistics()["copied_in_bytes"]
    backward(model)
    gradient = model[0].weight.grad
    optimizer.step()
    assert model[0].weight.grad is gradient
    assert hvd.statistics()["copied_in_bytes"] - before == size + 4  # and the control round


def test_too_many_backward_passes(one_rank):
    model, optimizer = wrapped(one_rank)
    backward(model)
    with pytest.raises(AssertionError, match=r"'group0\.\d' got .* more than backward_passes_per_step=1"):
        backward(model)
    with pytest.raises(RuntimeError, match="was changed while"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    backward(model)
    assert not optimizer._addend.under_way()
    backward(model)
    optimizer.step()
    with pytest.raises(ValueError, match="at least 1"):
        optimizer.set_backward_passes_per_step(0)


def test_gradients_that_were_cleared_do_not_count_as_passes(one_rank):
    """A pass that zero_grad() has cleared must be made again before any gradient travels."""
    model, optimizer = wrapped(one_rank, backward_passes_per_step=2)
    backward(model)
    optimizer.zero_grad()
    pushed = hvd.statistics()["rounds"]
    backward(model)
    assert not optimizer._addend.under_way() and hvd.statistics()["rounds"] == pushed
    once = model[0].weight.grad.clone()
    backward(model)
    assert optimizer._addend.under_way()
    optimizer.step()
    assert torch.equal(model[0].weight.grad, 2 * once)


def test_a_new_number_of_passes_counts_from_its_setting(one_rank):
    model, optimizer = wrapped(one_rank, backward_passes_per_step=3)
    backward(model)
    optimizer.set_backward_passes_per_step(2)
    backward(model)
    assert not optimizer._addend.under_way()
    backward(model)
    assert optimizer._addend.under_way()
    optimizer.step()


def test_averages_that_were_cleared_are_not_taken_for_the_steps_gradients(one_rank):
    """synchronize() and zero_grad() without a step between them: the next step averages again."""
    model, optimizer = wrapped(one_rank)
    backward(model)
    optimizer.synchronize()
    optimizer.zero_grad(set_to_none=True)
    rounds = hvd.statistics()["rounds"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert hvd.statistics()["rounds"] > rounds


def test_clipping_without_synchronize_is_noticed(one_rank):
    model, optimizer = wrapped(one_rank)
    backward(model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with pytest.raises(RuntimeError, match="gradient of 'group0.3' was changed .*synchronize"):
        optimizer.step()


def test_a_step_after_synchronize_warns_and_does_not_average_again(one_rank):
    model, optimizer = wrapped(one_rank, op=hvd.Sum)
    backward(model)
    optimizer.synchronize()
    optimizer.synchronize()
    rounds = hvd.statistics()["rounds"]
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()
    assert hvd.statistics()["rounds"] == rounds
    optimizer.zero_grad()
    backward(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert hvd.statistics()["rounds"] > rounds


def test_a_second_step_averages_again(one_rank):
    model, optimizer = wrapped(one_rank)
    backward(model)
    optimizer.step()
    rounds = hvd.statistics()["rounds"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert hvd.statistics()["rounds"] > rounds


def test_a_pass_after_synchronize_is_averaged(one_rank):
    """Such a pass changes the averages, though it is too early for its gradients to travel."""
    model, optimizer = wrapped(one_rank, backward_passes_per_step=2)
    backward(model)
    backward(model)
    optimizer.synchronize()
    rounds = hvd.statistics()["rounds"]
    backward(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert hvd.statistics()["rounds"] > rounds


class TwoCalls(torch.optim.SGD):
    """Calls its closure twice in every step."""

    def step(self, closure):
        closure()
        return closure()


def test_every_call_of_a_closure_is_averaged(one_rank):
    """A rank may have no gradient at the second call; the other ranks may have gradients."""
    del one_rank
    model = torch.nn.Linear(3, 1)
    optimizer = hvd.DistributedOptimizer(TwoCalls(model.parameters(), lr=0.1))
    losses = [torch.zeros(()), model(torch.ones(2, 3)).sum()]

    def closure():
        loss = losses.pop()
        if loss.requires_grad:
            loss.backward()
        return loss

    before = hvd.statistics()["rounds"]
    optimizer.step(closure)
    assert not losses and hvd.statistics()["rounds"] - before == 2 * (2 + 1)  # and the control rounds


def test_gradients_may_be_views_of_a_shared_buffer(one_rank):
    """Views count their changes together: a later layer's push is no change of an earlier layer's gradient."""
    model, optimizer = wrapped(one_rank, op=hvd.Sum)
    buffer = torch.zeros(sum(p.numel() for p in model.parameters()))
    end = 0
    for parameter in model.parameters():
        start, end = end, end + parameter.numel()
        parameter.grad = buffer[start:end].view_as(parameter)
    backward(model)
    optimizer.step()
    assert all(p.grad._base is buffer for p in model.parameters())
    assert torch.equal(buffer[-1:], torch.full((1,), 2.0))  # the last bias, of two examples


def test_sparse_gradients(one_rank):
    for dense in (True, False):
        model = torch.nn.Embedding(5, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), sparse_as_dense=dense
        )
        torch.nn.init.zeros_(model.weight)
        model(torch.tensor([1, 1, 3])).sum().backward()
        optimizer.step()
        assert model.weight.grad.is_sparse, "as Horovod has it: SparseAdam takes no other"
        assert torch.equal(model.weight.detach(), torch.tensor([0.0, -2, 0, -1, 0])[:, None].expand(-1, 2))


def test_sparse_gradients_do_not_go_through_a_scheme(one_rank):
    model = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=Plain()
    )
    with pytest.raises(TypeError, match="'weight' is sparse.*sparse_as_dense"):
        model(torch.tensor([1, 1, 3])).sum().backward()
    del optimizer


def test_parameters_that_come_and_go(one_rank):
    model, optimizer = wrapped(one_rank)
    model.add_module("head", torch.nn.Linear(1, 2))
    optimizer.add_param_group({"params": list(model.head.parameters()), "lr": 1.0})
    model[0].weight.requires_grad_(False)
    before = weights(model[0])
    backward(model)
    optimizer.step()
    assert {"group1.0", "group1.1", "group0.1"} < set(optimizer._addend.labels().values())
    names = _core.declared_under("addend.optimizer/")
    assert any(name.endswith("/group1.1") for name in names)
    assert not any(name.endswith("/group0.0") for name in names)
    # Its first gradient is sent by step(), the next gradients in the backward pass.
    model[0].weight.requires_grad_(True)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    assert (weights(model[0]) != before).all()
    assert any(name.endswith("/group0.0") for name in _core.declared_under("addend.optimizer/"))


def test_a_destroyed_optimizer_leaves_nothing(one_rank):
    model, optimizer = wrapped(one_rank)
    backward(model)
    optimizer.step()
    prefix = optimizer._addend._prefix
    assert _core.declared_under(prefix)
    del optimizer
    gc.collect()
    backward(model)  # the model's hooks do nothing any more
    next_one = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    assert not _core.declared_under(prefix)
    next_one.zero_grad()
    backward(model)
    next_one.step()


def test_unsupported_arguments_are_refused(one_rank):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight, bias = model.parameters()
    for options, error, reason in (
        ({"named_parameters": [("a", weight), ("a", bias)]}, ValueError, "names twice: 'a'"),
        ({"named_parameters": [("a", weight)]}, ValueError, "1 of .*: group0.1"),
        ({"named_parameters": [weight, bias]}, ValueError, "pairs"),
        ({"op": "sum"}, TypeError, "op must be"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, ValueError, "needs op=Average"),
        ({"gradient_predivide_factor": 0}, ValueError, "above 0"),
        ({"backward_passes_per_step": 0}, ValueError, "at least 1"),
        ({"num_groups": -1}, ValueError, "num_groups"),
        ({"groups": [weight]}, ValueError, "list of lists"),
        ({"groups": [["a"]]}, ValueError, "parameters only"),
        ({"groups": [[weight], [weight]]}, ValueError, "two places"),
        ({"compression": "fp16"}, TypeError, "compress"),
        ({"compression": Plain(), "op": hvd.Sum}, ValueError, "scheme averages"),
        ({"process_set": 1}, TypeError, "must be an addend.torch.ProcessSet"),
    ):
        with pytest.raises(error, match=reason):
            hvd.DistributedOptimizer(optimizer, **options)
    with pytest.raises(TypeError, match="torch.optim.Optimizer"):
        hvd.DistributedOptimizer(model)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(optimizer))
    scheme = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression=Plain())
    with pytest.raises(NotImplementedError, match="Plain"):
        hvd.join()
    del scheme
    complex_ = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="complex64"):
        hvd.DistributedOptimizer(torch.optim.SGD([complex_], lr=0.1))


def test_the_jobs_error_is_raised_and_the_next_job_is_a_new_one(start_agent, tmp_path):
    import addend

    agent = start_agent(1)
    addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    model, optimizer = wrapped(None)
    agent.tell("hold")
    backward(model)
    agent.tell("fail 75 rank 7 is gone")
    with pytest.raises(hvd.PeerLostError, match="rank 7"):
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(hvd.PeerLostError, match="rank 7"):
        backward(model)
    addend.shutdown()
    agent.tell("release")
    addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    assert hvd.join() == 0
    addend.shutdown()


@pytest.mark.parametrize("first", ["zero_grad", "backward", "step"])
def test_gradients_under_way_are_forgotten_with_their_job(start_agent, first):
    import addend

    agent = start_agent(1)
    addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    model, optimizer = wrapped(None)
    agent.tell("hold")
    backward(model)
    assert optimizer._addend.under_way()
    addend.shutdown()
    agent.tell("release")
    addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    if first == "zero_grad":
        optimizer.zero_grad()
    if first != "step":
        backward(model)
    optimizer.step()
    assert not optimizer._addend.under_way()
    addend.shutdown()


class Unchanged(Plain):
    """A scheme without conditions on the parameters' names."""

    def stepping(self, optimizer, names):
        return Scheme.stepping(self, optimizer, names)


def test_a_bucket_forgets_the_gradients_of_a_former_job(start_agent):
    """With them the bucket would be full, and be sent, before its gradients are there."""
    import addend

    agent = start_agent(1)
    addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    model, optimizer = wrapped(None, compression=Unchanged())
    model[0](torch.ones(2, 3)).sum().backward()  # the last gradients of a whole backward pass
    addend.shutdown()
    addend.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    optimizer.zero_grad()
    alone = copy.deepcopy(model)
    for network in (model, alone):
        network.zero_grad(set_to_none=True)
        backward(network)
    optimizer.synchronize()
    for parameter, expected in zip(model.parameters(), alone.parameters()):
        assert torch.equal(parameter.grad, expected.grad)
    addend.shutdown()


def test_a_bucket_of_an_aborted_step_may_still_be_under_way_when_the_buckets_change(one_rank):
    model, optimizer = wrapped(one_rank, compression=Unchanged())
    one_rank.tell("hold")
    backward(model)
    model[0].weight.grad.mul_(2)
    with pytest.raises(RuntimeError, match="was changed while"):
        optimizer.step()
    model[0].weight.requires_grad_(False)
    optimizer.zero_grad()
    backward(model)
    one_rank.tell("release")
    optimizer.step()
    assert not optimizer._addend.under_way()
