"""DistributedDataParallel with the hook: compressions, and DDP's treatment of buckets and hooks."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (  # noqa: E402
    bf16_compress_wrapper,
    fp16_compress_wrapper,
)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import addend.torch  # noqa: E402
from addend.torch.compression import CoarseSparse  # noqa: E402
from tests.support.ddp_ranks import (  # noqa: E402
    COMPRESSIONS,
    Network,
    RANKS,
    SCHEMES,
    check_same_everywhere,
    gradients,
    loss_of,
    make,
    run,
    same,
    start,
    step_with,
    stop,
)
from tests.support.torch_ranks import declared, gathered  # noqa: E402


# ---- training ----


def every_kind_of_training():
    start()
    kinds = {
        "plain": lambda step: ({}, {"detour": True}),
        "static graph": lambda step: ({"static_graph": True}, {"detour": True}),
        "views": lambda step: ({"gradient_as_bucket_view": True}, {"detour": True}),
        # The branch runs on rank 0 only, on rank 1 only, on both, on neither.
        "unused": lambda step: (
            {"find_unused_parameters": True},
            {"detour": (step + addend.torch.rank() * (step // 2)) % 2 == 0},
        ),
    }
    for name in COMPRESSIONS:
        for kind, options in kinds.items():
            model, state, optimizer = make(name, **options(0)[0])
            losses = [step_with(model, state, optimizer, step, **options(step)[1]) for step in range(6)]
            check_same_everywhere(model)
            assert losses[-1] < losses[0], (name, kind, losses)
    stop()


def test_ranks_stay_together_in_every_kind_of_training(start_agent):
    run(start_agent(RANKS), every_kind_of_training)


def unused_parameters_have_ddps_own_gradients():
    start()
    reference = DistributedDataParallel(Network(), find_unused_parameters=True)
    model, _, _ = make("none", find_unused_parameters=True)
    reference.module.load_state_dict(model.module.state_dict())
    for step in range(4):
        for one in (reference, model):
            one.zero_grad()
            loss_of(one, step, detour=step % 2 == 1 and addend.torch.rank() == 0).backward()
        for p, q in zip(model.parameters(), reference.parameters()):
            assert (p.grad is None) == (q.grad is None)
            assert p.grad is None or torch.allclose(p.grad, q.grad, atol=1e-7)
    stop()


def test_unused_parameters_have_the_gradients_of_ddp_itself(start_agent):
    run(start_agent(RANKS), unused_parameters_have_ddps_own_gradients)


def gradients_are_accumulated():
    start()
    for name in COMPRESSIONS:
        model, state, optimizer = make(name)
        for step in range(2):
            step_with(model, state, optimizer, step, detour=True)
        optimizer.zero_grad()
        before = copy.deepcopy(state.state_dict())
        rounds = addend.torch.statistics()["rounds"]
        with model.no_sync():
            for step in (2, 3):
                loss_of(model, step, detour=True).backward()
        assert addend.torch.statistics()["rounds"] == rounds
        assert same(state.state_dict(), before), name
        loss_of(model, 4, detour=True).backward()
        assert addend.torch.statistics()["rounds"] > rounds
        with state.stepping(optimizer):
            optimizer.step()
        check_same_everywhere(model)
    stop()


def test_no_sync_sends_nothing_and_counts_no_step(start_agent):
    run(start_agent(RANKS), gradients_are_accumulated)


def accumulated_gradients_are_the_average_of_the_sums():
    start()
    model, _, _ = make("none")
    alone = copy.deepcopy(model.module)
    for step in range(3):
        loss_of(alone, step, detour=True).backward()
    with model.no_sync():
        for step in range(2):
            loss_of(model, step, detour=True).backward()
    loss_of(model, 2, detour=True).backward()
    expected = sum(gathered(gradients(alone))) / RANKS
    torch.testing.assert_close(gradients(model), expected)
    stop()


def test_accumulated_gradients_are_averaged_once(start_agent):
    run(start_agent(RANKS), accumulated_gradients_are_the_average_of_the_sums)


# ---- buckets ----


def residuals_survive_new_buckets():
    start()
    for name in ("one bit", "top k", "random k"):
        buckets = []

        def hook(state, bucket):
            buckets[-1].append(tuple(id(p) for p in bucket.parameters()))
            return addend.torch.ddp_comm_hook(state, bucket)

        model, state, _ = make(name, hook)
        total, arrived = 0, 0
        for step in range(4):
            buckets.append([])
            alone = copy.deepcopy(model.module)
            loss_of(alone, step, detour=True).backward()
            total = total + gradients(alone).double()
            model.zero_grad()
            loss_of(model, step, detour=True).backward()
            arrived = arrived + gradients(model).double()
        assert buckets[0] != buckets[1] and buckets[1] == buckets[3], "the test has lost its point"
        residuals = state.state_dict()["state"]["residuals"]
        names = [parameter for parameter, _ in model.module.named_parameters()]
        assert set(residuals) == set(names)
        left = torch.cat([residuals[parameter] for parameter in names]).double()
        # The ranks keep the part that was not sent.
        expected = sum(gathered(total - left)) / RANKS
        torch.testing.assert_close(arrived, expected, atol=1e-6, rtol=1e-4)
    stop()


def test_residuals_follow_the_parameters_into_rebuilt_buckets(start_agent):
    run(start_agent(RANKS), residuals_survive_new_buckets)


def tensors_of_former_buckets_are_gone():
    start()
    for name in COMPRESSIONS:
        others = declared()
        model, state, optimizer = make(name)
        count = []
        for step in range(8):
            step_with(model, state, optimizer, step, detour=True)
            count.append([tensor for tensor in declared() if tensor not in others])
        assert count[0] != count[-1]
        assert count[-1] == count[-2], name
    stop()


def test_tensors_of_former_buckets_are_undeclared(start_agent):
    run(start_agent(RANKS), tensors_of_former_buckets_are_gone)


def elements_of_other_memory_formats_stay():
    start()
    torch.manual_seed(2)
    module = torch.nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last)
    model = DistributedDataParallel(module)
    state = addend.torch.HookState(model, CoarseSparse(density=0.2, chunk_elements=8, warm_up_steps=0))
    model.register_comm_hook(state, addend.torch.ddp_comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        before = module.weight.detach().clone()
        optimizer.zero_grad()
        images = torch.rand(2, 8, 5, 5, generator=torch.Generator().manual_seed(step))
        model(images).square().mean().backward()
        with state.stepping(optimizer):
            optimizer.step()
        sent = module.weight.grad != 0
        assert torch.equal(module.weight[~sent], before[~sent])
        assert (module.weight[sent] != before[sent]).all()
        assert step < 2 or 0 < sent.sum() < 0.3 * sent.numel()
    stop()


def test_elements_that_were_not_sent_stay_in_any_memory_format(start_agent):
    run(start_agent(1), elements_of_other_memory_formats_stay)


# ---- types and values ----


def trains_in_bfloat16():
    start()
    for name in COMPRESSIONS:
        model, state, optimizer = make(name)
        losses = []
        for step in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, step, detour=True)
            loss.backward()
            with state.stepping(optimizer):
                optimizer.step()
            losses.append(loss.item())
        assert check_same_everywhere(model).dtype == torch.float32
        assert losses[-1] < losses[0], name
    stop()


def test_autocast_trains_with_every_compression(start_agent):
    run(start_agent(RANKS), trains_in_bfloat16)


def an_infinite_gradient_arrives():
    start()
    for name in COMPRESSIONS:
        for bad in (float("inf"), float("nan")):
            model, state, optimizer = make(name)
            for step in range(5):
                step_with(model, state, optimizer, step, detour=True)
            before = copy.deepcopy(state.state_dict()["state"])
            optimizer.zero_grad()
            weight = model.module.second.weight
            hook = weight.register_hook(lambda g: g.index_fill(0, torch.tensor([3]), bad)) if (
                addend.torch.rank() == 1
            ) else None
            loss_of(model, 5, detour=True).backward()
            if hook is not None:
                hook.remove()
            for finite in gathered(torch.isfinite(gradients(model))):
                assert not finite.all(), (name, bad)
            after = state.state_dict()["state"]
            for kind in ("residuals", "history"):
                if kind in after:  # of the parameter's own bucket nothing has changed
                    assert same(after[kind]["second.weight"], before[kind]["second.weight"]), name
            # As GradScaler does, all ranks skip this step, and go on.
            step_with(model, state, optimizer, 6, detour=True)
            check_same_everywhere(model)
    stop()


def test_an_infinite_gradient_arrives_on_all_ranks(start_agent):
    run(start_agent(RANKS), an_infinite_gradient_arrives)


def under_another_name(hook):
    """DDP refuses hooks with the names of torch's own for bfloat16 where there is no NCCL."""
    hook.__name__ = "hook"
    return hook


def casts_are_of_every_ranks_gradient():
    start()
    casts = {
        torch.float16: (
            ("fp16", addend.torch.ddp_comm_hook),
            ("none", addend.torch.fp16_compress_hook),
            ("none", fp16_compress_wrapper(addend.torch.ddp_comm_hook)),
        ),
        torch.bfloat16: (
            ("bf16", addend.torch.ddp_comm_hook),
            ("none", addend.torch.bf16_compress_hook),
            ("none", under_another_name(bf16_compress_wrapper(addend.torch.ddp_comm_hook))),
        ),
    }
    for dtype, ways in casts.items():
        for name, hook in ways:
            model, state, optimizer = make(name, hook)
            for step in range(3):
                alone = copy.deepcopy(model.module)
                loss_of(alone, step, detour=True).backward()
                mine = gathered(gradients(alone).to(dtype)).float()
                expected = (mine.sum(0) / RANKS).to(dtype).float()
                step_with(model, state, optimizer, step, detour=True)
                assert torch.equal(gradients(model), expected), (dtype, name)
    for name in SCHEMES:
        model, state, optimizer = make(name, fp16_compress_wrapper(addend.torch.ddp_comm_hook))
        losses = [step_with(model, state, optimizer, step, detour=True) for step in range(6)]
        check_same_everywhere(model)
        assert losses[-1] < losses[0], name
    stop()


def test_casts_and_torchs_own_wrappers(start_agent):
    run(start_agent(RANKS), casts_are_of_every_ranks_gradient)


class OwnCompressor:
    """Horovod's protocol, as a user would write it."""

    @staticmethod
    def compress(tensor):
        return (tensor * 1024).to(torch.float16), 1024

    @staticmethod
    def decompress(tensor, context):
        return tensor.float() / context


def a_users_compressor_works():
    start()
    COMPRESSIONS["own"] = lambda: OwnCompressor
    model, state, optimizer = make("own")
    losses = [step_with(model, state, optimizer, step, detour=True) for step in range(6)]
    check_same_everywhere(model)
    assert losses[-1] < losses[0]
    stop()


def test_a_users_own_compressor(start_agent):
    run(start_agent(RANKS), a_users_compressor_works)
