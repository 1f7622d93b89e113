"""Push-pulls from an emulated GPU, several tensors at a time and for several rounds, in the scenario that the test names."""
import itertools
import os

import numpy as np

from common import RANK, gate, outcome, finish, parameters
from tests.support import emulated_gpu, reference

p = parameters()
LOCAL_RANK = int(os.environ["LOCAL_RANK"])
gpu = emulated_gpu.Gpu(p["bus_ids"][LOCAL_RANK])

import addend  # noqa: E402


def rounds():
    """Push-pulls several tensors at a time; returns the digests of all results."""
    digest = []
    for number in range(1, p["rounds"] + 1):
        started, of_host = [], []
        for index, size in enumerate(p["sizes"]):
            values = reference.random_values("float32", size, [number, index, RANK])
            if p.get("poison") == [number, index, RANK]:
                values[7] = np.nan
            if p.get("host_round") == number:
                of_host.append(reference.digest(addend.push_pull(values, f"t{index}", op=addend.Sum)))
            else:
                started.append(gpu.start(values, f"t{index}", addend.Sum, wire=p.get("wire"), priority=-index))
        digest.append(of_host + [reference.digest(gpu.finish(*one)) for one in started])
        if number == p.get("gate_after"):
            gate("there")
    return digest


def steady():
    """Counts the library's CUDA calls after the first rounds: synchronisations, and allocations by span of ten rounds."""
    values = np.ones(p["elements"], dtype=np.float32)
    for _ in range(3):
        gpu.push_pull(values, "t", addend.Sum)
    results = [np.empty_like(values) for _ in range(30)]  # the GPU may write to them until the end
    synchronisations = gpu.count("synchronisations")
    allocations = [gpu.count("allocations")]
    for index, result in enumerate(results, start=1):
        handle, _ = gpu.start(values, "t", addend.Sum, out=result)
        handle.wait()
        handle.to_stream(gpu.stream)
        if index % 10 == 0:
            allocations.append(gpu.count("allocations"))
    synchronisations = gpu.count("synchronisations") - synchronisations
    gpu.finish(handle, results[-1])
    return {"synchronisations": synchronisations, "allocations": [b - a for a, b in itertools.pairwise(allocations)]}


def failing():
    """The GPU of a rank fails in the middle."""
    values = np.ones(2_000_000, dtype=np.float32)
    gpu.push_pull(values, "t", addend.Sum)
    if RANK == p["fails"]:
        gpu.fail()
    return outcome(lambda: [gpu.push_pull(values, "t", addend.Sum) for _ in range(50)])


def mixed():
    """A rank pushes from host memory a tensor that the others push from their GPUs."""
    values = np.ones(1000, dtype=np.float32)
    gpu.push_pull(values, "first", addend.Sum)
    if RANK == p["on_host"]:
        return outcome(lambda: addend.push_pull(values, "t", op=addend.Sum))
    return outcome(lambda: gpu.push_pull(values, "t", addend.Sum))


def one_stays_away():
    """A rank never pushes from its GPU."""
    values = np.ones(1000, dtype=np.float32)
    if RANK == p["on_host"]:
        return outcome(lambda: addend.push_pull(values, "t", op=addend.Sum))
    return outcome(lambda: gpu.push_pull(values, "t", addend.Sum))


def both():
    """Pushes the same tensor alternately from the GPU and from host memory; also an empty tensor, and a tensor without this rank's data."""
    values = reference.random_values("float32", 5000, [RANK])
    results = [gpu.push_pull(values, "t", addend.Sum) if turn % 2 else addend.push_pull(values, "t", op=addend.Sum)
               for turn in range(6)]
    nothing = gpu.push_pull(np.empty(0, dtype=np.float32), "empty", addend.Sum)
    some = gpu.push_pull(None if RANK == 1 else values, "some", addend.Sum, out=np.empty_like(values))
    others = reference.random_values("float32", 5000, [0])
    return {"same": len({reference.digest(result) for result in results}), "empty": nothing.size,
            "of_rank_0": bool(addend.size() != 2 or np.array_equal(some, others))}


def main():
    addend.init()
    result = globals()[p["what"]]()
    if p.get("shutdown", True):
        addend.shutdown()
    finish(result)


main()
