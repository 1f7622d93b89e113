"""Trains the example's model twice in a process, with Addend and with its reference; rank 0 compares the weights."""
import argparse
import importlib.util
import pathlib

import torch.distributed as dist

import addend.torch
from common import RANK, file, finish, gate, parameters

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "train_char_transformer.py"


def load_example():
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def main():
    example = load_example()
    example.CONTEXT, example.BATCH = 16, 1  # for machines that are emulated
    example.torch.set_num_threads(1)
    example.torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    addend.torch.init()
    checksums = {}
    for reduce in ("addend", "reference"):
        example.train(argparse.Namespace(
            steps=parameters()["steps"], lr=3e-3, reduce=reduce, progress_file=None, checksum_file=file(reduce), checkpoint_step=None, compile=False))
        checksums[reduce] = file(reduce).read_text() if RANK == 0 else None
        gate(f"trained with {reduce}")
    addend.torch.shutdown()
    dist.destroy_process_group()
    finish(checksums)


main()
