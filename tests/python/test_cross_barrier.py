"""CrossBarrier: the weights of the same training without it, bit for bit."""

import pytest

torch = pytest.importorskip("torch")

import addend.torch as hvd  # noqa: E402
from addend.torch.compression import Scheme  # noqa: E402


class Net(torch.nn.Module):
    """Parameters that are tied, used by their parent only, used at times, and never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = torch.nn.Embedding(11, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)  # does not call its out_proj
        self.normal = torch.nn.LayerNorm(8)
        self.at_times = torch.nn.Linear(8, 8)
        self.output = torch.nn.Linear(8, 11, bias=False)
        self.output.weight = self.embedding.weight
        self.own = torch.nn.Parameter(torch.ones(8))
        self.never = torch.nn.Parameter(torch.ones(3))
        self.calls = 0

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = self.normal(x + self.attention(x, x, x, need_weights=False)[0]) * self.own
        self.calls += 1
        if self.calls % 3 == 2:
            x = x + self.at_times(x)
        return self.output(x)


def train(make, cross, steps=7, set_to_none=True, look=False, scheduled_before=False):
    model = Net()
    elsewhere = torch.nn.Parameter(torch.ones(2))  # of no module
    optimizer = hvd.DistributedOptimizer(make([*model.parameters(), elsewhere]))
    if scheduled_before:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    if cross:
        optimizer = hvd.CrossBarrier(model, optimizer, num_steps=steps)
    if not scheduled_before:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    seen = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        generator = torch.Generator().manual_seed(100 * hvd.rank() + step)
        tokens = torch.randint(11, (2, 5), generator=generator)
        (model(tokens).square().mean() + elsewhere.sum()).backward()
        optimizer.step()
        scheduler.step()
        if look and step == 3:
            seen.append(model.state_dict()["output.weight"].clone())
            seen.append(optimizer.state_dict()["param_groups"][0]["lr"])
        if look and step == 4:
            model.eval()
            with torch.inference_mode():
                seen.append(model(tokens).clone())
            model.train()
    return [p.detach().clone() for p in model.parameters()] + [elsewhere.detach()] + seen


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9, weight_decay=0.01)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def trains_on_two_ranks():
    torch.set_num_threads(1)
    hvd.init()
    for make in (sgd, adam):
        for options in ({}, {"set_to_none": False}, {"look": True}, {"scheduled_before": True}):
            plain, crossed = train(make, False, **options), train(make, True, **options)
            for one, other in zip(plain, crossed):
                assert torch.equal(one, other) if torch.is_tensor(one) else one == other
            assert not torch.equal(plain[0], torch.ones_like(plain[0]))
    hvd.barrier()
    hvd.shutdown()


def test_the_weights_are_those_without_it(start_agent):
    start_agent(2).run_ranks(trains_on_two_ranks)


def wrapped(num_steps=None):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return model, hvd.CrossBarrier(model, hvd.DistributedOptimizer(optimizer), num_steps)


def test_a_step_waits_for_nothing_and_the_next_forward_pass_for_what_it_uses(one_rank):
    model, optimizer = wrapped()
    assert isinstance(optimizer, torch.optim.SGD)
    before = [p.detach().clone() for p in model.parameters()]
    one_rank.tell("hold")
    model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(AssertionError, match="between backward"):
        optimizer.zero_grad()
    optimizer.step()  # nobody has answered
    optimizer.zero_grad()
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before))
    one_rank.tell("release")
    model[1](torch.ones(2, 4))
    assert torch.equal(model[0].weight, before[0]) and not torch.equal(model[1].weight, before[2])
    model[0](torch.ones(2, 3))
    assert not torch.equal(model[0].weight, before[0])
    assert not any(p.grad is not None and p.grad.any() for p in model.parameters())


def test_pending_updates_are_applied(one_rank):
    for end in (
        lambda model, optimizer: optimizer.synchronize(),
        lambda model, optimizer: optimizer.state_dict(),
        lambda model, optimizer: model.state_dict(),
        lambda model, optimizer: model.eval()(torch.ones(2, 3)),
    ):
        model, optimizer = wrapped()
        before = [p.detach().clone() for p in model.parameters()]
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        end(model, optimizer)
        assert not any(torch.equal(p, was) for p, was in zip(model.parameters(), before))
        assert all(p.grad is None for p in model.parameters())
    model, optimizer = wrapped(num_steps=2)
    for step in range(2):
        before = model[0].weight.detach().clone()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(model[0].weight, before) == (step == 0)


def test_a_change_of_a_gradient_after_the_step_is_noticed(one_rank):
    """The average would overwrite the change, such as that of clipping."""
    model, optimizer = wrapped()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    with pytest.raises(RuntimeError, match="was changed while it was being averaged"):
        model(torch.ones(2, 3))


def test_a_recorded_step_is_made_before_the_optimizer_changes(one_rank):
    del one_rank
    for change in (
        lambda optimizer, state: optimizer.load_state_dict(state),
        lambda optimizer, state: optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}),
    ):
        model, optimizer = wrapped()
        state = optimizer.state_dict()
        before = [p.detach().clone() for p in model.parameters()]
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        change(optimizer, state)
        assert not any(torch.equal(p, was) for p, was in zip(model.parameters(), before))


def test_a_recorded_step_has_the_options_of_its_time(one_rank):
    del one_rank
    model, optimizer = wrapped()
    rate = torch.tensor(0.5)
    optimizer.param_groups[0]["lr"] = rate
    before = model[1].bias.detach().clone()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    rate.zero_()  # a scheduler that works in place
    optimizer.synchronize()
    assert torch.equal(model[1].bias, before - 0.5 * 2)  # the gradient is the number of examples


class OtherPath(torch.nn.Module):
    """Evaluation uses the layer's weight without a call of the layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1, bias=False)

    def forward(self, x):
        return self.layer(x) if self.training else x @ self.layer.weight.t()


def test_an_evaluation_waits_for_every_parameter_of_its_module(one_rank):
    del one_rank
    model = OtherPath()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = hvd.CrossBarrier(model, hvd.DistributedOptimizer(optimizer))
    before = model.layer.weight.detach().clone()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        result = model.eval()(torch.ones(1, 3))
    assert torch.equal(result, (before - 1.0).sum(1, keepdim=True))


def test_a_parameter_that_is_used_before_its_module_is_called_is_noticed(one_rank):
    model, optimizer = wrapped()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    early = model[0].weight.square().sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (early + model(torch.ones(2, 3)).sum()).backward()


def test_unsupported_arguments_are_refused(one_rank):
    model, optimizer = wrapped()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="DistributedOptimizer of the model"):
        hvd.CrossBarrier(model, plain)
    with pytest.raises(NotImplementedError, match="scheme"):
        hvd.CrossBarrier(model, hvd.DistributedOptimizer(plain, compression=Scheme()))
    with pytest.raises(NotImplementedError, match="closure"):
        optimizer.step(lambda: None)
    with pytest.raises(NotImplementedError, match="clip"):
        optimizer.skip_synchronize()
