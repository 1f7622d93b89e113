"""The sum that Addend promises, in NumPy, written from the specification alone.

Within a node by ascending local rank, then over the nodes, ascending, by a tree of radix 8; starting from the first contribution, not from zero. float16 and
bfloat16 are added in float32 and rounded once in the node and once in the result. Average divides the accumulator by the number of ranks;
integers wrap, and divide towards zero. Every NaN of a result is the canonical NaN. bfloat16 values are uint16 arrays of their bits.
With a lossy type on the wire a node's contribution is rounded to it, and then the result.
"""
import functools
import hashlib

import numpy as np

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
OPS = ("Sum", "Average", "Min", "Max")
_CANONICAL_NAN = {"float32": 0x7FC00000, "float64": 0x7FF8000000000000, "float16": 0x7E00, "bfloat16": 0x7FC0}
_BITS = {"float32": np.uint32, "float64": np.uint64, "float16": np.uint16, "bfloat16": np.uint16,
         "int32": np.uint32, "int64": np.uint64}


def storage(dtype):
    """The NumPy type that holds values of `dtype`."""
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def widen(dtype, values):
    if dtype == "float16":
        return values.astype(np.float32)
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def narrow(dtype, values):
    """Rounds an accumulator to `dtype`, ties to even; NaNs become the canonical NaN."""
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    elif dtype == "float16":
        rounded = values.astype(np.float16)
    else:
        rounded = values.copy()
    if dtype in _CANONICAL_NAN:
        rounded.view(_BITS[dtype])[np.isnan(values)] = _CANONICAL_NAN[dtype]
    return rounded


def combine(op, first, second):
    """The operation on two accumulators, `first` being the earlier accumulator."""
    if op in ("Sum", "Average"):
        return first + second
    chosen = np.where(second < first if op == "Min" else second > first, second, first)
    if first.dtype.kind == "f":
        chosen[np.isnan(first) | np.isnan(second)] = np.nan
    return chosen


def fold(op, dtype, values):
    total = widen(dtype, values[0])
    for value in values[1:]:
        total = combine(op, total, widen(dtype, value))
    return total


RADIX = 8


def tree(op, dtype, values):
    """The sum of the nodes' contributions by their positions: eight after each other, then those sums. None: a node that adds nothing."""
    level = [None if value is None else widen(dtype, value) for value in values]
    while len(level) > 1:
        level = [_sum_of(op, level[first:first + RADIX]) for first in range(0, len(level), RADIX)]
    return level[0]


def _sum_of(op, values):
    present = [value for value in values if value is not None]
    return functools.reduce(functools.partial(combine, op), present) if present else None


def divide(values, divisor):
    if values.dtype.kind == "f":
        return values / values.dtype.type(divisor)
    quotient, rest = np.divmod(values, values.dtype.type(divisor))
    return quotient + ((rest != 0) & (values < 0)).astype(values.dtype)  # NumPy rounds down, Addend towards zero


def round_to(wire, values):
    """float32 values rounded to the nearest of the type `wire`: "bf16", "fp16" or "int8"."""
    if wire in ("bf16", "fp16"):
        dtype = {"bf16": "bfloat16", "fp16": "float16"}[wire]
        return widen(dtype, narrow(dtype, values))
    assert wire == "int8"
    blocks = np.zeros(-(-values.size // 64) * 64, np.float32)
    blocks[:values.size] = values
    blocks = blocks.reshape(-1, 64)
    largest = np.abs(blocks).max(axis=1).astype(np.float64)
    finite = np.isfinite(largest)
    exponents = np.floor(np.log2(np.where(finite & (largest > 0), largest, 1)))
    # 7 bits for the largest, but the unit is a normal float32.
    units = 2.0 ** np.maximum(np.where(largest > 0, exponents - 6, -126), -126)
    multiples = np.clip(np.rint(blocks / units[:, None]), -127, 127)
    rounded = (multiples * units[:, None]).astype(np.float32) + np.float32(0)  # no -0
    return np.where(finite[:, None], rounded, blocks).reshape(-1)[:values.size]


def push_pull(op, dtype, contributions, wire=None):
    """The result for contributions[node][local_rank]."""
    def on_the_wire(values):
        return values if wire is None else round_to(wire, values)
    with np.errstate(all="ignore"):
        nodes = [on_the_wire(narrow(dtype, fold(op, dtype, ranks)) if len(ranks) > 1 else ranks[0]) for ranks in contributions]
        total = tree(op, dtype, nodes)
        if op == "Average":
            total = divide(total, sum(len(ranks) for ranks in contributions))
        return on_the_wire(narrow(dtype, total))


def random_values(dtype, size, seed):
    """Values whose sum depends on the order: magnitudes spread over 2^20. `seed`: any sequence of integers."""
    random = np.random.Generator(np.random.PCG64(seed))
    if dtype.startswith("int"):
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True)  # the sum wraps around
    spread = (2.0 ** random.integers(-10, 10, size)).astype(np.float32)
    values = random.standard_normal(size, dtype=np.float32) * spread
    return narrow(dtype, values.astype(np.float64) if dtype == "float64" else values)


def special_values(dtype, size, seed):
    """Random values among NaNs of both signs and with payloads, infinities, both zeros, denormals and the largest values."""
    values = random_values(dtype, size, seed)
    if dtype.startswith("int"):
        return values
    specials = {
        "float32": [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0, 1, 0x80000001,
                    0x007FFFFF, 0x7F7FFFFF, 0xFF7FFFFF],
        "float64": [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FF0000000000000, 0xFFF0000000000000,
                    0x8000000000000000, 0, 1, 0x8000000000000001, 0x000FFFFFFFFFFFFF, 0x7FEFFFFFFFFFFFFF],
        "float16": [0x7E00, 0xFE00, 0x7C01, 0xFFFF, 0x7C00, 0xFC00, 0x8000, 0, 1, 0x8001, 0x03FF, 0x7BFF, 0xFBFF],
        "bfloat16": [0x7FC0, 0xFFC0, 0x7F81, 0xFFFF, 0x7F80, 0xFF80, 0x8000, 0, 1, 0x8001, 0x007F, 0x7F7F, 0xFF7F],
    }[dtype]
    random = np.random.Generator(np.random.PCG64([*seed, 1]))
    chosen = random.random(size) < 0.5
    values.view(_BITS[dtype])[chosen] = random.choice(np.array(specials, _BITS[dtype]), size)[chosen]
    return values


def mixed_values(dtype, size, seed):
    """Blocks of 64 values of the kinds that encodings know: zeros, few values, and values of fewer bits; among them special values.
    Most blocks are the same kind on all nodes, as those of gradients are.
    """
    values = special_values(dtype, size, seed)
    bits = values.view(_BITS[dtype])
    width = 8 * bits.itemsize
    kinds = np.random.Generator(np.random.PCG64(seed[:3])).integers(0, 6, -(-size // 64))
    own = np.random.Generator(np.random.PCG64([*seed, 2]))
    kinds = np.where(own.random(kinds.size) < 0.1, own.integers(0, 6, kinds.size), kinds)
    kinds = np.repeat(kinds, 64)[:size]
    sparse = own.random(size) < 0.9
    small = own.integers(-100, 100, size)
    bits[kinds == 0] = 0
    bits[kinds == 1] &= np.array(~((1 << width // 2) - 1) % (1 << width), bits.dtype)  # the upper half
    bits[kinds == 2] &= np.array(~0xFF % (1 << width), bits.dtype)
    bits[(kinds == 3) & sparse] = 0
    if dtype == "bfloat16":
        return values
    values[kinds == 4] = small.astype(storage(dtype))[kinds == 4]
    return values


def digest(values):
    return hashlib.sha256(np.ascontiguousarray(values).view(np.uint8)).hexdigest()[:16]
