"""A rank of PyTorch's own Gloo backend, for bench/peers: peer_torch.py RANK RANKS FOLDER SIZES ITERATIONS WARM-UP. Measures as peer_rounds.h does."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist


def over_all(value, op):
    number = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(number, op=op)
    return number.item()


def rounds(size, ranks, iterations, warm_up):
    tensors, _, each = size.rpartition("x")
    tensors, elements = int(tensors or 1), int(each) // 4
    values = torch.full((elements,), 1e-30)
    seconds, cpu = [], 0
    for i in range(-warm_up, iterations):
        over_all(0, dist.ReduceOp.MAX)
        cpu_before, start = time.process_time(), time.perf_counter()
        for _ in range(tensors):
            dist.all_reduce(values)
        took, used = time.perf_counter() - start, time.process_time() - cpu_before
        slowest = over_all(took, dist.ReduceOp.MAX)
        if i >= 0:
            seconds.append(slowest)
            cpu += used
    total = tensors * elements * 4
    return {"bytes": total, "p50_s": sorted(seconds)[(iterations - 1) // 2], "cpu_s_per_GB": over_all(cpu, dist.ReduceOp.SUM) / ranks / iterations / total * 1e9}


def main():
    rank, ranks, folder, sizes, iterations, warm_up = sys.argv[1:]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=int(ranks))
    lines = [rounds(size, int(ranks), int(iterations), int(warm_up)) for size in sizes.split(",")]
    if rank == "0":
        print(json.dumps(lines))


main()
