"""The training program of the Kubernetes cases: every round sums tensors and compares each sum with NumPy's bits.

    trainer.py --rounds=N    N rounds
    trainer.py               until the file /tmp/finish is in any rank's container

The last line of a rank that has succeeded is "rounds N sha256 CHECKSUM": equal rounds have equal checksums, whatever happened
meanwhile. A rank that fails prints why and ends with Addend's exit status.
"""
import argparse
import hashlib
import os
import sys
import time

import numpy

import addend

ELEMENTS = (1, 1023, 300001)  # an element, an odd number, and more than a partition
MAX_ROUNDS = 100000
ROUNDS_PER_SECOND = 20  # enough to meet every disturbance, and little for the machine of a laptop


def contribution(rank, number, elements):
    """The values that a rank pushes in a round; every process can compute those of every rank."""
    return numpy.random.Generator(numpy.random.PCG64([rank, number, elements])).standard_normal(elements, numpy.float32)


def expected(ranks, number, elements):
    """Addend's sum of at most eight nodes: in the order of the ranks."""
    total = contribution(0, number, elements)
    for rank in range(1, ranks):
        total = total + contribution(rank, number, elements)
    return total


def train(rounds):
    addend.init()
    rank, ranks = addend.rank(), addend.size()
    checksum = hashlib.sha256()
    number = 0
    while number < (rounds or MAX_ROUNDS):
        begin = time.monotonic()
        for elements in ELEMENTS:
            result = addend.push_pull(contribution(rank, number, elements), f"tensor.{elements}", op=addend.Sum)
            if result.tobytes() != expected(ranks, number, elements).tobytes():
                sys.exit(f"rank {rank}: the sum of {elements} elements in round {number} is not NumPy's, bit by bit")
            checksum.update(result.tobytes())
        number += 1
        if number % 10 == 0:
            print(f"round {number}", flush=True)
        if not rounds:
            finish = numpy.array([os.path.exists("/tmp/finish")], numpy.int32)
            if addend.push_pull(finish, "finish", op=addend.Sum)[0]:
                break
            time.sleep(max(0, begin + 1 / ROUNDS_PER_SECOND - time.monotonic()))
    addend.shutdown()
    print(f"rounds {number} sha256 {checksum.hexdigest()}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0)
    try:
        train(parser.parse_args().rounds)
    except addend.Error as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)


if __name__ == "__main__":
    main()
