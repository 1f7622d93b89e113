"""Trains with a torch DataLoader whose workers are forked from the trainer; they report the sockets and segments that they inherited."""
import os

import numpy as np
import torch
import torch.utils.data

import addend
from common import finish


def inherited():
    """The parts of the trainer's connection in a forked process: mapped segments, sockets, and the code of a call."""
    maps = open("/proc/self/maps").read()
    mine = sockets()
    try:
        addend.push_pull(np.ones(3, np.float32), "from a worker", op=addend.Sum)
        code = 0
    except addend.Error as error:
        code = int(error.code)
    return {"mapped": maps.count("memfd:addend"), "sockets": len(mine & AGENT_SOCKETS), "code": code}


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info()
        report = inherited() if worker is not None and index < 2 else {}
        return torch.tensor([float(index)]), report


def sockets():
    links = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return {link for link in links if link.startswith("socket:")}


def main():
    global AGENT_SOCKETS
    before = sockets()
    addend.init()
    AGENT_SOCKETS = sockets() - before
    assert AGENT_SOCKETS
    size = addend.size()
    addend.push_pull(np.ones(100_000, np.float32), "gradient", op=addend.Sum)
    workers, right = [], True
    for epoch in range(2):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=1, num_workers=2, multiprocessing_context="fork",
                                             collate_fn=lambda batch: batch)
        for step, batch in enumerate(loader):
            workers += [report for _, report in batch if report]
            result = addend.push_pull(np.full(100_000, step, np.float32), "gradient", op=addend.Sum)
            right = right and bool((result == step * size).all())
    addend.shutdown()
    finish({"right": right, "workers": workers})


main()
