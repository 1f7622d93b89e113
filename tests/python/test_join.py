"""join: ranks with fewer batches than others take part with nothing to add."""

import pytest

torch = pytest.importorskip("torch")

import addend.torch as hvd  # noqa: E402
from tests.python.reference_training import HalfOfIt, Net, loss_of, reference, sgd, weights  # noqa: E402


def joins_on_three_ranks():
    torch.set_num_threads(1)
    hvd.init()
    rank = hvd.rank()
    batches = (2, 5, 3)
    for passes, options in (
        (1, {}),
        (2, {}),
        (1, {"compression": HalfOfIt}),
        (1, {"gradient_predivide_factor": 2.0}),
    ):
        model, other = Net(), torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(
            sgd(model), model.named_parameters(), backward_passes_per_step=passes, **options
        )
        second = hvd.DistributedOptimizer(torch.optim.SGD(other.parameters(), lr=1.0))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(batches[rank]):
            optimizer.zero_grad()
            for i in range(passes):
                loss_of(model, rank, step * passes + i).backward()
            optimizer.step()
            scheduler.step()
            if step % 2:  # in every second step the other optimizer steps as well
                other(torch.ones(1, 2)).sum().backward()
                second.step()
                second.zero_grad()
        if passes == 2 and rank == 0:
            loss_of(model, rank, 0).backward()  # half of a step: dropped
        last = hvd.join()
        assert last == 1
        hvd.broadcast_parameters(model.state_dict(), last)
        hvd.broadcast_parameters(other.state_dict(), last)
        expected = reference(sgd, steps=5, passes=passes, steps_of=lambda r: batches[r])
        assert torch.allclose(weights(model), expected, rtol=0, atol=1e-6)
        if "compression" not in options:
            assert torch.equal(weights(model), expected)
        model.zero_grad()
        for _ in range(passes):  # all go on together
            loss_of(model, rank, 0).backward()
        optimizer.step()
    # Ranks begin the steps of two optimizers in different orders.
    models = [torch.nn.Linear(2, 1, bias=False) for _ in range(2)]
    optimizers = [hvd.DistributedOptimizer(torch.optim.SGD(one.parameters(), lr=3.0)) for one in models]
    for one in models:
        torch.nn.init.zeros_(one.weight)
    for _ in range(batches[rank]):
        order = models if rank % 2 else models[::-1]
        sum(one(torch.ones(1, 2)).sum() for one in order).backward()
        for one in optimizers:
            one.step()
            one.zero_grad()
    last = hvd.join()
    for one in models:
        hvd.broadcast_parameters(one, last)
        assert torch.equal(one.weight.detach(), torch.full((1, 2), -float(sum(batches)))), one.weight
    # All at once, and without any step since.
    assert hvd.join() == 1
    optimizer.zero_grad()
    loss_of(model, rank, 0).backward()
    with pytest.raises(RuntimeError, match="between backward"):
        hvd.join()
    optimizer.step()
    assert hvd.join() == 2
    hvd.shutdown()


def test_ranks_with_fewer_batches_join(start_agent):
    start_agent(3).run_ranks(joins_on_three_ranks)


def test_join_in_a_new_job_does_not_wait_for_the_former_jobs_round(start_agent):
    """A rank without batches calls join() first of all."""
    agent = start_agent(1)
    hvd.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    agent.tell("hold")
    model(torch.ones(1, 2)).sum().backward()
    agent.tell("fail 75 rank 7 is gone")
    with pytest.raises(hvd.PeerLostError, match="rank 7"):
        optimizer.step()
    hvd.shutdown()
    agent.tell("release")
    hvd.init(agent.socket, rank=0, size=1, local_rank=0, local_size=1)
    assert hvd.join() == 0
    hvd.shutdown()
