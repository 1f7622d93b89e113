"""Push-pulls every case of the matrix, a few at a time and several rounds each, and reports the results' digests."""
import numpy as np

import addend
from common import file, finish, parameters
from tests.support import cases, emulated_gpu, reference


def main():
    p = parameters()
    addend.init()
    node, local_rank = divmod(addend.rank(), addend.local_size())
    gpu = emulated_gpu.Gpu(p["gpus"][local_rank]) if p["gpus"] else None
    digests = {}
    for dtype in p["dtypes"]:
        for op in p["ops"]:
            for kind, size in p["shapes"]:
                name = f"{dtype}/{op}/{kind}/{size}"
                for round in range(1, p["rounds"] + 1):
                    values = cases.contribution(dtype, op, size, kind, round, node, local_rank)
                    if gpu is not None:
                        result = gpu.push_pull(values, name, getattr(addend, op))
                    else:
                        handle = addend.push_pull_async(values, name, op=getattr(addend, op), **bfloat16(dtype))
                        result = addend.synchronize(handle)
                    assert result.dtype == values.dtype and result.shape == values.shape, (result.dtype, result.shape)
                    key = cases.name_of(dtype, op, size, kind, round)
                    digests[key] = reference.digest(result)
                    if digests[key] != p["expected"].get(key, digests[key]):
                        np.save(f"{file(key.replace(' ', '_'))}.npy", result)
                addend.undeclare(name)
    addend.shutdown()
    finish(digests)


def bfloat16(dtype):
    return {"dtype": "bfloat16"} if dtype == "bfloat16" else {}


main()
