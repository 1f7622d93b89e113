"""Collectives in process groups of some ranks, several at once: reports wrong results, and what Addend has left to Gloo."""
import logging.handlers

import torch
import torch.distributed as dist

import addend.torch  # noqa: F401
from common import RANK, finish, parameters


def main():
    p = parameters()
    said = logging.handlers.BufferingHandler(10_000)
    logging.getLogger("addend.torch").setLevel(logging.INFO)
    logging.getLogger("addend.torch").addHandler(said)
    torch.set_num_threads(1)
    dist.init_process_group("addend", rank=RANK, world_size=p["size"], init_method=f"file://{p['store']}")
    made = [(ranks, dist.new_group(ranks)) for ranks in p["groups"]]
    wrong = []

    def expect(what, found, wanted):
        if not torch.equal(found, wanted):
            wrong.append(f"{what}: {found.flatten()[:3].tolist()} instead of {wanted.flatten()[:3].tolist()}")

    mine = [(ranks, group) for ranks, group in made if RANK in ranks]
    for number in range(p["rounds"]):
        works = []
        for ranks, group in mine:
            total = torch.full((70_001,), float(RANK + number))
            works.append((ranks, total, dist.all_reduce(total, group=group, async_op=True)))
        for ranks, total, work in works:
            work.wait()
            expect(f"all_reduce of {ranks}", total, torch.full((70_001,), float(sum(ranks) + len(ranks) * number)))
        for ranks, group in mine:
            mean = torch.full((3,), float(RANK))
            dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
            expect(f"mean of {ranks}", mean, torch.full((3,), sum(ranks) / len(ranks)))
            value = torch.full((3,), RANK, dtype=torch.int16)
            dist.broadcast(value, ranks[-1], group=group)
            expect(f"broadcast in {ranks}", value, torch.full((3,), ranks[-1], dtype=torch.int16))
            dist.barrier(group=group)
            parts = [torch.zeros(2) for _ in ranks]
            dist.all_gather(parts, torch.full((2,), float(RANK)), group=group)
            expect(f"all_gather in {ranks}", torch.stack(parts)[:, 0], torch.tensor([float(one) for one in ranks]))
    dist.destroy_process_group()
    left = [record.args[1] for record in said.buffer if "goes through" in record.msg]
    finish({"wrong": wrong, "left": sorted(set(left))})


main()
