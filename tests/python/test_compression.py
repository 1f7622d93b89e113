"""The compression schemes by themselves, on buckets made here; test_ddp.py has them in training."""

import functools
import math
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")

import addend.torch  # noqa: E402
from addend.torch.compression import (  # noqa: E402
    Bucket,
    CoarseSparse,
    Compression,
    Int8,
    OneBit,
    Part,
    RandomK,
    TopK,
)
from addend.torch.compression.cast import CastScheme, as_scheme  # noqa: E402
from addend.torch.compression.int8 import rounded_to_int8  # noqa: E402
from tests.support import reference as numpy_reference  # noqa: E402
from tests.support.torch_ranks import declared, gathered  # noqa: E402

RANKS = 3
SIZES = {"a": 37, "b": 1, "c": 200, "none": 0}
ELEMENTS = sum(SIZES.values())
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# The bucket has 24 chunks; the last chunk has 8 elements.
SPARSE = functools.partial(CoarseSparse, density=0.2, chunk_elements=10, warm_up_steps=0)
SCHEMES = {
    "fp16": lambda: CastScheme(Compression.fp16),
    "int8": lambda: CastScheme(Compression.int8),
    "int8 with feedback": Int8,
    "one bit": OneBit,
    "top k": lambda: TopK(0.1),
    "top 3": lambda: TopK(3),
    "random k": lambda: RandomK(0.1, seed=5),
    "coarse sparse": SPARSE,
    "one bit, no feedback": lambda: OneBit(error_feedback=False),
    "top k, no feedback": lambda: TopK(0.1, error_feedback=False),
    "random k, no feedback": lambda: RandomK(0.1, error_feedback=False),
    "uncorrected": lambda: SPARSE(correction=False),
}


def bucket_of(values, name="bucket", sizes=None):
    parts, start = [], 0
    for parameter, size in (sizes or SIZES).items():
        parts.append(Part(parameter, start, start + size))
        start += size
    assert start == values.numel()
    return Bucket(name, values.clone(), parts)


def gradient(step, rank=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(ELEMENTS, generator=generator).to(dtype)


def exchange(scheme, values, name="bucket", sizes=None):
    bucket = bucket_of(values, name, sizes)
    result = scheme.start(bucket).wait()
    assert result is bucket.buffer and result.dtype == values.dtype
    with scheme.stepping(torch.optim.SGD([torch.zeros(1)], lr=1.0), {}):
        pass
    return result


# ---- results ----


def one_bit_of(values):
    pieces = values.split(list(SIZES.values()))
    scales = [piece.abs().sum() / max(1, piece.numel()) for piece in pieces]
    return torch.cat([torch.where(p >= 0, scale, -scale) for p, scale in zip(pieces, scales)])


def int8_of(values):
    return torch.from_numpy(numpy_reference.round_to("int8", values.float().numpy())).to(values.dtype)


def top_k_of(values):
    pieces = []
    for piece in values.split(list(SIZES.values())):
        count = math.ceil(0.1 * piece.numel())
        threshold = piece.abs().sort(descending=True).values[count - 1] if count else 0.0
        pieces.append(torch.where(piece.abs() >= threshold, piece, torch.zeros_like(piece)))
    return torch.cat(pieces)


def what_arrives_is_the_references_average():
    addend.torch.init()
    rank = addend.torch.rank()
    for dtype in DTYPES:
        working = torch.float64 if dtype == torch.float64 else torch.float32
        # The miniature agent does not round on the way: tests/cluster/test_encodings.py has that.
        for make, reference in (
            (OneBit, lambda values: int8_of(one_bit_of(values))),
            (Int8, int8_of),
            (lambda: TopK(0.1), top_k_of),
        ):
            if reference is top_k_of and dtype not in (torch.float32, torch.float64):
                continue  # which of equal elements is sent is not defined
            scheme = make()
            residuals = [torch.zeros(ELEMENTS, dtype=working) for _ in range(RANKS)]
            for step in range(3):
                gradients = [gradient(step, r, dtype).to(working) + residuals[r] for r in range(RANKS)]
                sent = [reference(one) for one in gradients]
                residuals = [one - part for one, part in zip(gradients, sent)]
                summed = working if reference is top_k_of else torch.float32  # the others travel as int8
                total = sent[0].to(summed) + sent[1].to(summed) + sent[2].to(summed)
                result = exchange(scheme, gradient(step, rank, dtype), f"{dtype}/{type(scheme).__name__}")
                assert torch.equal(result, (total / RANKS).to(dtype)), (dtype, step, scheme)
    addend.torch.shutdown()


def test_signs_and_largest_elements_are_summed_in_rank_order(start_agent):
    start_agent(RANKS).run_ranks(what_arrives_is_the_references_average)


def test_int8_is_rounded_as_the_specification_says():
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-45, 1e-38, 1e-20, 1e-3, 1.0, 1e30):
        values = torch.randn(1000, generator=generator) * scale
        values[100:164] = 0.0
        values[5] = -0.0
        rounded = rounded_to_int8(values)
        assert rounded.numpy().tobytes() == numpy_reference.round_to("int8", values.numpy()).tobytes(), scale
        assert torch.equal(rounded_to_int8(rounded), rounded)
    values[130] = float("inf")
    assert torch.equal(rounded_to_int8(values)[128:192], values[128:192])


class Algorithm1:
    """GradientFlow's algorithm for all ranks, chunk by chunk, with plain loops."""

    def __init__(self, count, momentum):
        self.count, self.momentum = count, momentum
        self.important = None
        self.history = [torch.zeros(ELEMENTS) for _ in range(RANKS)]

    def step(self, gradients):
        gradients = [g + h for g, h in zip(gradients, self.history)]
        chunks = range(0, ELEMENTS, 10)
        important = self.important or list(chunks)
        result = torch.zeros(ELEMENTS)
        self.history = [self.momentum * g for g in gradients]
        norms = {}
        for begin in chunks:
            place = slice(begin, min(begin + 10, ELEMENTS))
            if begin in important:
                result[place] = (gradients[0][place] + gradients[1][place] + gradients[2][place]) / RANKS
                norms[begin] = RANKS * float(result[place].abs().sum())
                for history in self.history:
                    history[place] = 0
            else:
                norms[begin] = sum(float(g[place].abs().sum()) for g in gradients)
        self.important = sorted(chunks, key=lambda begin: -norms[begin])[: self.count]
        return result


def chunks_travel_by_algorithm_1():
    addend.torch.init()
    rank = addend.torch.rank()
    reference = Algorithm1(5, 0.9)  # 5: a fifth of 24, rounded up
    scheme = SPARSE(momentum=0.9)
    short_one = 0
    for step in range(12):
        expected = reference.step([gradient(step, r) for r in range(RANKS)])
        result = exchange(scheme, gradient(step, rank))
        assert torch.equal(result, expected), step
        short_one += bool(result[-8:].any())
    assert short_one > 1, "the short chunk was never important: the test has lost its point"
    assert declared() == ["bucket/5 chunks", "bucket/norms"]
    scheme.forget("bucket")
    assert not declared()
    addend.torch.shutdown()


def test_coarse_sparse_is_algorithm_1(start_agent):
    start_agent(RANKS).run_ranks(chunks_travel_by_algorithm_1)


def chunk_counts(scheme, steps):
    """How many of a bucket's 24 chunks arrive in each step."""
    counts = []
    for step in range(steps):
        result = exchange(scheme, gradient(step))
        counts.append(sum(bool(piece.any()) for piece in result.split(10)))
        assert len([name for name in declared() if name.endswith("chunks")]) == 1
    scheme.forget("bucket")
    return counts


def test_the_density_falls_while_warming_up(one_rank):
    counts = chunk_counts(SPARSE(warm_up_steps=10), 12)
    levels = [24 * 0.2 ** (level / 5) for level in range(6)]
    expected = [math.ceil(levels[min(5, step // 2)]) for step in range(12)]
    assert counts == expected and counts[0] == 24 and counts[-1] == 5
    assert chunk_counts(SPARSE(density=1.0), 2) == [24, 24]
    assert chunk_counts(SPARSE(chunk_elements=1000), 2) == [24, 24], "a bucket of one chunk is dense"


def test_equal_chunks_are_chosen_by_position_and_infinite_chunks_first(one_rank):
    scheme = SPARSE()
    exchange(scheme, torch.ones(ELEMENTS))
    assert exchange(scheme, torch.ones(ELEMENTS)).nonzero().flatten().tolist() == list(range(50))
    scheme = SPARSE()
    values = torch.ones(ELEMENTS, dtype=torch.float64)
    values[231] = values[101] = 1e300  # too large for the norms, which are float32
    values[100] = -1e300
    for _ in range(2):
        result = exchange(scheme, values, "large")
    assert result.nonzero().flatten().tolist() == [*range(30), *range(100, 110), *range(230, 238)]


def random_elements_are_the_same_on_all_ranks():
    addend.torch.init()
    rank = addend.torch.rank()
    scheme = SCHEMES["random k, no feedback"]()
    average = sum(gradient(0, r) for r in range(RANKS)) / RANKS
    seen = torch.zeros(ELEMENTS)
    for _ in range(20):
        result = exchange(scheme, gradient(0, rank))
        drawn = result != 0
        counts = [int(piece.sum()) for piece in drawn.split(list(SIZES.values()))]
        assert counts == [4, 1, 20, 0]
        assert torch.equal(result[drawn], average[drawn])
        seen += drawn
    assert (seen > 0).float().mean() > 0.7, "always the same elements"
    addend.torch.shutdown()


def test_random_elements_are_summed_in_place(start_agent):
    start_agent(RANKS).run_ranks(random_elements_are_the_same_on_all_ranks)


def results_have_the_same_bits():
    addend.torch.init()
    rank = addend.torch.rank()
    for dtype in DTYPES:
        for name, make in SCHEMES.items():
            scheme = make()
            for step in range(3):
                result = exchange(scheme, gradient(step, rank, dtype), f"{name}/{dtype}")
                assert torch.isfinite(result).all() and result.any()
                for other in gathered(result):
                    assert torch.equal(other, result), (name, dtype, step)
            scheme.forget(f"{name}/{dtype}")
            assert not declared(), name
    addend.torch.shutdown()


def test_results_have_the_same_bits_on_all_ranks(start_agent):
    start_agent(RANKS).run_ranks(results_have_the_same_bits)


# ---- residuals and state ----


@pytest.mark.parametrize("name", ["one bit", "top k", "top 3", "random k"])
def test_nothing_is_lost(one_rank, name):
    scheme = SCHEMES[name]()
    total, arrived = torch.zeros(ELEMENTS, dtype=torch.float64), torch.zeros(ELEMENTS, dtype=torch.float64)
    for step in range(10):
        # The parameters change their buckets and positions, as with DDP.
        sizes = dict(sorted(SIZES.items(), reverse=step % 2 == 1))
        values = gradient(step, dtype=torch.float64)
        pieces = dict(zip(SIZES, values.split(list(SIZES.values()))))
        total += values
        result = exchange(scheme, torch.cat([pieces[p] for p in sizes]), f"bucket{step % 2}", sizes)
        pieces = dict(zip(sizes, result.split(list(sizes.values()))))
        arrived += torch.cat([pieces[p] for p in SIZES])
    residuals = scheme.state_dict()["residuals"]
    assert set(residuals) == set(SIZES)
    kept = torch.cat([residuals[p] for p in SIZES])
    assert kept.any()
    torch.testing.assert_close(arrived + kept, total)


def test_small_remainders_of_half_types_add_up(one_rank):
    scheme = TopK(1)
    values = torch.full((ELEMENTS,), 2.0**-10, dtype=torch.bfloat16)
    for part, start in (("a", 0), ("c", 38)):
        values[start] = 1.0  # always the largest, of part
    for _ in range(300):
        exchange(scheme, values)
    assert torch.equal(scheme.state_dict()["residuals"]["a"][1:], torch.full((36,), 300 * 2.0**-10))


def test_history_follows_the_parameters_into_other_buckets(one_rank):
    scheme = SPARSE(momentum=0.5)
    exchange(scheme, gradient(0))
    arrived = exchange(scheme, gradient(1))
    left = 0.5 * torch.where(arrived == 0, gradient(1), torch.zeros(()))
    a = exchange(scheme, torch.zeros(37), "other", {"a": 37})
    assert torch.equal(a, left[:37]), "the first step of a bucket is dense"
    c = exchange(scheme, torch.zeros(200), "third", {"c": 200})
    assert torch.equal(c, left[38:])


def continues_from_its_state():
    addend.torch.init()
    rank = addend.torch.rank()
    for name, make in SCHEMES.items():
        whole = make()
        uninterrupted = [exchange(whole, gradient(step, rank), name) for step in range(6)]
        first, loaded = make(), make()
        for step in range(3):
            exchange(first, gradient(step, rank), name)
        pickled = pickle.loads(pickle.dumps(first))
        loaded.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        for scheme, at in ((loaded, "loaded"), (pickled, "pickled")):
            for step in range(3, 6):
                result = exchange(scheme, gradient(step, rank), at + name)
                assert torch.equal(result, uninterrupted[step]), (name, at, step)
    addend.torch.shutdown()


def test_a_loaded_state_goes_on_with_the_same_bits(start_agent):
    start_agent(2).run_ranks(continues_from_its_state)


def test_a_state_is_a_copy(one_rank):
    for name in ("one bit", "top k", "random k", "coarse sparse"):
        scheme = SCHEMES[name]()
        for step in range(2):
            exchange(scheme, gradient(step), name)
        state = scheme.state_dict()
        before = pickle.dumps(state)
        exchange(scheme, gradient(2), name)
        assert pickle.dumps(state) == before, name


def test_a_state_of_another_model_is_refused(one_rank):
    for name in ("one bit", "coarse sparse"):
        scheme = SCHEMES[name]()
        for _ in range(2):
            exchange(scheme, torch.ones(3), "small" + name, {"a": 3})
        other = SCHEMES[name]()
        other.load_state_dict(scheme.state_dict())
        with pytest.raises(ValueError, match="3 values are kept of the parameter 'a', which has 37"):
            exchange(other, gradient(0))
    with pytest.raises(ValueError, match="CastScheme keeps no state"):
        SCHEMES["fp16"]().load_state_dict({"residuals": {}})


def test_restarted_ranks_choose_as_new_ranks_do(one_rank):
    for name in ("random k, no feedback", "coarse sparse"):
        scheme, fresh = SCHEMES[name](), SCHEMES[name]()
        for _ in range(3):
            exchange(scheme, gradient(0))
        addend.shutdown()
        addend.init(one_rank.socket, rank=0, size=1, local_rank=0, local_size=1)
        places = exchange(scheme, gradient(0)) != 0
        assert torch.equal(places, exchange(fresh, gradient(0), "fresh" + name) != 0), name


# ---- values that are not finite ----


def infinities_arrive_everywhere():
    addend.torch.init()
    rank = addend.torch.rank()
    for dtype in DTYPES:
        for name, make in SCHEMES.items():
            scheme, bucket = make(), f"{name}/{dtype}"
            for step in range(2):
                result = exchange(scheme, gradient(step, rank, dtype), bucket)
            before = scheme.state_dict()
            for bad in (float("inf"), float("-inf"), float("nan")):
                values = gradient(2, rank, dtype)
                if rank == 1:
                    # An element that would not have been sent, where the scheme leaves some out.
                    values[int((result == 0).nonzero()[0]) if (result == 0).any() else 0] = bad
                result = exchange(scheme, values, bucket)
                for other in gathered(torch.isfinite(result)):
                    assert not other.all(), (name, dtype, bad)
                result = torch.ones(ELEMENTS)
            after = scheme.state_dict()
            for kind in ("residuals", "history"):
                for parameter, kept in before.get(kind, {}).items():
                    assert torch.equal(after[kind][parameter], kept), (name, dtype, parameter)
            assert torch.isfinite(exchange(scheme, gradient(3, rank, dtype), bucket)).all(), name
    addend.torch.shutdown()


def test_infinities_arrive_on_all_ranks_and_are_not_kept(start_agent):
    start_agent(2).run_ranks(infinities_arrive_everywhere)


# ---- the optimizer's step ----


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, momentum=0.5),
])
def test_elements_without_a_gradient_stay_as_they_are(one_rank, make):
    scheme = SPARSE()
    shapes = {"a": (37,), "b": (), "c": (10, 20)}
    parameters = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
    names = {parameter: name for name, parameter in parameters.items()}
    optimizer = make(list(names))
    sizes = {name: SIZES[name] for name in shapes}
    for step in range(3):
        result = scheme.start(bucket_of(gradient(step), "bucket", sizes)).wait()
        for (name, parameter), piece in zip(parameters.items(), result.split(list(sizes.values()))):
            parameter.grad = piece.view(parameter.shape).clone()
        before = {p: {k: v.clone() for k, v in tensors(optimizer, p).items()} for p in names}
        with scheme.stepping(optimizer, names):
            optimizer.step()
        if step == 0:
            continue
        assert (result == 0).sum() > 180, "all was sent: the test has lost its point"
        for parameter in names:
            sent = parameter.grad != 0
            for key, value in tensors(optimizer, parameter).items():
                was = before[parameter][key]
                if key == "step":
                    assert value == was + 1
                    continue
                assert torch.equal(value[~sent], was[~sent]), (names[parameter], key)
                assert key == "max_exp_avg_sq" or (value[sent] != was[sent]).all(), (names[parameter], key)


def tensors(optimizer, parameter):
    kept = {k: v for k, v in optimizer.state.get(parameter, {}).items() if torch.is_tensor(v)}
    return {"values": parameter.detach(), **kept}


def test_a_step_outside_of_stepping_is_warned_of_once(one_rank):
    scheme = SPARSE()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):
            scheme.start(bucket_of(gradient(step))).wait()
        uncorrected = SCHEMES["uncorrected"]()
        for step in range(3):
            uncorrected.start(bucket_of(gradient(step), "other")).wait()
    with pytest.warns(UserWarning, match="with state.stepping"):
        scheme.start(bucket_of(gradient(2))).wait()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheme.start(bucket_of(gradient(3))).wait()


# ---- settings ----


def test_wrong_settings_are_refused():
    for make, reason in (
        (lambda: TopK(0), "k must be"),
        (lambda: TopK(1.5), "k must be"),
        (lambda: RandomK(-1), "k must be"),
        (lambda: CoarseSparse(density=0), "density"),
        (lambda: CoarseSparse(density=1.5), "density"),
        (lambda: CoarseSparse(chunk_elements=0), "chunk_elements"),
        (lambda: CoarseSparse(chunk_elements=1e4), "chunk_elements"),
        (lambda: CoarseSparse(momentum=1.0), "momentum"),
        (lambda: CoarseSparse(warm_up_steps=-1), "warm_up_steps"),
    ):
        with pytest.raises(ValueError, match=reason):
            make()
    with pytest.raises(TypeError, match="compression must be"):
        as_scheme("fp16")


def test_a_share_is_rounded_up_but_not_for_a_rounding_error(one_rank):
    assert 0.07 * 100 > 7
    for elements, expected in ((100, 7), (101, 8), (1, 1), (50, 4)):
        result = exchange(TopK(0.07), torch.arange(1.0, elements + 1), f"{elements}", {"p": elements})
        assert int((result != 0).sum()) == expected
