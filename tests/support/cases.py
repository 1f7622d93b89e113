"""The cases of the numerics matrix, shared by the test (which computes the reference) and its trainers."""
import functools

import numpy as np

from tests.support import reference

_KINDS = {"random": reference.random_values, "special": reference.special_values, "mixed": reference.mixed_values}


def name_of(dtype, op, size, kind="random", round=1):
    return f"{kind} {dtype} {op} {size} #{round}"


def contribution(dtype, op, size, kind, round, node, local_rank):
    seed = [reference.DTYPES.index(dtype), reference.OPS.index(op), size, round, node, local_rank]
    return _KINDS[kind](dtype, size, seed)


@functools.lru_cache(maxsize=None)
def expected_digest(nodes, local_size, dtype, op, size, kind, round):
    contributions = [[contribution(dtype, op, size, kind, round, node, local) for local in range(local_size)]
                     for node in range(nodes)]
    return reference.digest(reference.push_pull(op, dtype, contributions))


def first_difference(nodes, local_size, dtype, op, size, kind, round, path):
    """Explains the differences of a wrong result, saved at `path`."""
    contributions = [[contribution(dtype, op, size, kind, round, node, local) for local in range(local_size)]
                     for node in range(nodes)]
    right, wrong = reference.push_pull(op, dtype, contributions), np.load(path)
    differ = np.flatnonzero(right.view(np.uint8).reshape(size, -1) != wrong.view(np.uint8).reshape(size, -1))
    places = np.unique(differ // right.itemsize)
    inputs = [[ranks[places[0]] for ranks in node] for node in contributions]
    return (f"{len(places)} of {size} elements differ, the first at {places[0]}: {wrong[places[0]]!r} instead of "
            f"{right[places[0]]!r} from {inputs}")
