"""Arguments that addend.torch.allreduce_replicas_ refuses, and its cost; whole clusters test its values."""

import pytest

torch = pytest.importorskip("torch")

import addend  # noqa: E402
import addend.torch  # noqa: E402


def test_integers_have_no_average(one_rank):
    with pytest.raises(TypeError, match="torch.int32 is not defined"):
        addend.torch.allreduce_replicas_(torch.ones(2, dtype=torch.int32), "t")
    total = addend.torch.allreduce_replicas_(torch.ones(2, dtype=torch.int32), "t", addend.Sum)
    assert total.tolist() == [1, 1]


def test_unsupported_types_are_type_errors(one_rank):
    with pytest.raises(TypeError, match="takes tensors"):
        addend.torch.allreduce_replicas_([1.0], "t")
    with pytest.raises(TypeError, match="op must be"):
        addend.torch.allreduce_replicas_(torch.ones(2), "t", addend.torch.Adasum)


def test_gradients_do_not_flow_through(one_rank):
    weight = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert addend.torch.allreduce_replicas_(weight, "w") is weight
    assert weight.grad is None and weight.requires_grad


def shards_of_one_node():
    addend.torch.init()
    rank = addend.torch.rank()
    for _ in range(3):
        shard = torch.full((4,), rank + 0.5)
        handle = addend.torch.allreduce_replicas_async_(shard, "shard")
        assert torch.equal(addend.torch.synchronize(handle), torch.full((4,), rank + 0.5))
    addend.torch.shutdown()


def test_a_nodes_own_shards_are_not_mixed(start_agent):
    start_agent(3).run_ranks(shards_of_one_node)
