"""A rank of all-reduces by Gloo, whose algorithm in PyTorch is the ring; rank 0 prints the seconds of each as JSON."""
import json
import sys
import time

import torch
import torch.distributed as dist


def main():
    size, warm_up, rounds = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tensor = torch.full((size // 4,), 1e-30)  # so small that it is still finite after many rounds
    seconds = []
    for index in range(warm_up + rounds):
        dist.barrier()
        begin = time.monotonic()
        dist.all_reduce(tensor)
        slowest = torch.tensor([time.monotonic() - begin], dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if index >= warm_up:
            seconds.append(slowest.item())
    if dist.get_rank() == 0:
        print(json.dumps(seconds), flush=True)


main()
