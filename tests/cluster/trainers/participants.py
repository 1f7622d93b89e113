"""Sums among several sets of ranks at once, each rank in an order of its own: reports the tensors whose bits are wrong."""
import random

import addend
from common import RANK, finish, gate, parameters
from tests.support import reference

OPS = {"Sum": addend.Sum, "Average": addend.Average, "Max": addend.Max}


def values(p, group, op, rank, number):
    return reference.random_values(p["dtype"], p["elements"], [group, sorted(OPS).index(op), rank, number])


def expected(p, group, op, number):
    nodes = {}
    for rank in sorted(p["groups"][group]):
        nodes.setdefault(rank // p["local_size"], []).append(values(p, group, op, rank, number))
    return reference.push_pull(op, p["dtype"], list(nodes.values()))


def main():
    p = parameters()
    addend.init()
    mine = [(group, op) for group, ranks in enumerate(p["groups"]) for op in OPS if RANK in ranks]
    wrong = []
    for number in range(p["rounds"]):
        if number == p.get("gate_at"):
            gate("middle")
        random.Random(f"{RANK} {number}").shuffle(mine)
        handles = {}
        for group, op in mine:
            ranks = list(p["groups"][group])
            random.Random(RANK).shuffle(ranks)
            handles[group, op] = addend.push_pull_async(
                values(p, group, op, RANK, number), f"{group} {op}", op=OPS[op], dtype=p["dtype"], participants=ranks)
        for (group, op), handle in handles.items():
            if addend.synchronize(handle).tobytes() != expected(p, group, op, number).tobytes():
                wrong.append(f"{op} of {p['groups'][group]}, round {number}")
    addend.shutdown()
    finish({"wrong": wrong})


main()
