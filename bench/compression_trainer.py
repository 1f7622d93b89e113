"""A rank of bench/compression: trains the character transformer of the examples with a compression scheme.

It stops at the gates "begin", "warm" (after the warm-up) and "end", where bench/compression counts the traffic.
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "cluster" / "trainers"), str(ROOT / "examples")]
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from common import finish, gate, parameters
from train_char_transformer import Batches, CharTransformer, load_text, weights_checksum

import addend.torch
from addend.torch import compression

SCHEMES = {
    "dense": lambda: addend.torch.Compression.none,
    "fp16": lambda: addend.torch.Compression.fp16,
    "int8": lambda: addend.torch.Compression.int8,
    "int8-feedback": compression.Int8,
    "coarse-sparse": compression.CoarseSparse,
    "one-bit": compression.OneBit,
    "top-k": compression.TopK,
    "random-k": compression.RandomK,
}


def main():
    options = parameters()
    torch.set_num_threads(1)
    torch.manual_seed(options["seed"])
    dist.init_process_group("gloo")  # DDP needs it for its own construction
    addend.torch.init()
    text, characters = load_text()
    batches = Batches(text, dist.get_rank() + 100 * options["seed"])
    model = DistributedDataParallel(CharTransformer(characters), bucket_cap_mb=options["bucket_mb"])
    state = addend.torch.HookState(model, SCHEMES[options["scheme"]](**options["arguments"]))
    model.register_comm_hook(state, addend.torch.ddp_comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=options["lr"], momentum=options["momentum"])
    losses = []
    gate("begin")
    for step in range(options["steps"]):
        if step == options["warm_up"]:
            gate("warm")
        inputs, targets = batches.next()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        with state.stepping(optimizer):
            optimizer.step()
        losses.append(loss.item())
    gate("end")
    finish({"losses": losses, "checksum": weights_checksum(model.module)})
    addend.torch.shutdown()
    dist.destroy_process_group()


main()
