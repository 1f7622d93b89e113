"""Recorded gradients for the benchmarks: profiles of training, a file per rank, and the encoded size of their blocks.

A profile is a small model whose gradients have the bit patterns of a kind of training. Its recording is a folder with
header.json and, per rank, the gradients of all parameters as raw float32: rank0.f32, rank1.f32, ... Every parameter
begins at a block of 64 elements; the rest that fills no block is left out. Recordings are kept in build/contents and made
again when this module, PyTorch or the seed changes.
"""
import hashlib
import json
import os
import pathlib

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "contents"
BLOCK = 64  # elements
MOST_RANKS = 16
USED_TOKENS = 128  # the part of the vocabulary that the batches of all ranks come from
SEQUENCE = 64


# ---- the models; torch is imported when a recording has to be made ----


def transformer(vocabulary, layers, tied, width=256, heads=4):
    """A GPT-2 in small: pre-norm blocks, learned positions, and an output layer that may be the embedding itself."""
    import torch
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (heads, width // heads)).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, -1))
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-2, -1) * (width // heads) ** -0.5).masked_fill(future, float("-inf"))
            x = x + self.out((scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.mlp_norm(x))))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(SEQUENCE, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            nn.init.normal_(self.tokens.weight, std=0.02)
            nn.init.normal_(self.head.weight, std=0.02)
            if tied:
                self.head.weight = self.tokens.weight

        def forward(self, tokens):
            x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
            return self.head(self.norm(self.blocks(x)))

    return Transformer()


def text(generator):
    """A batch of sequences and the tokens that follow; token frequencies fall as in a text."""
    import torch
    frequencies = 1 / torch.arange(1, USED_TOKENS + 1, dtype=torch.float32)
    tokens = torch.multinomial(frequencies, 2 * (SEQUENCE + 1), replacement=True, generator=generator).view(2, SEQUENCE + 1)
    return tokens[:, :-1], tokens[:, 1:]


def residual_network(channels=(64, 128, 256)):
    """A ResNet in small: a stage with a shortcut per number of channels."""
    import torch
    nn = torch.nn

    def convolution(inputs, outputs, stride=1):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))

    class Stage(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.first, self.second = convolution(inputs, outputs, 2), convolution(outputs, outputs)
            self.third, self.shortcut = convolution(outputs, outputs), convolution(inputs, outputs, 2)

        def forward(self, x):
            return torch.relu(self.third(torch.relu(self.second(torch.relu(self.first(x))))) + self.shortcut(x))

    stages = [Stage(inputs, outputs) for inputs, outputs in zip((16, *channels), channels)]
    return nn.Sequential(convolution(3, 16), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 1000))


def images(generator):
    import torch
    return torch.randn(8, 3, 32, 32, generator=generator), torch.randint(1000, (8,), generator=generator)


def mixed_precision(model, batch, passes=1):
    """Gradients of float32 parameters whose forward passes run under bfloat16 autocast."""
    import torch
    for _ in range(passes):
        inputs, targets = batch()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(inputs)
        torch.nn.functional.cross_entropy(outputs.float().flatten(0, -2), targets.flatten()).backward()
    return [parameter.grad for parameter in model.parameters()]


def sharded_embedding(generator, rows=65536, width=64, used=6554):
    """The gradient of a large embedding with bfloat16 parameters, converted to float32 for the sum.

    Every rank uses the same tenth of the rows, as batches do that are large or come from a small part of the vocabulary.
    """
    import torch
    table = torch.nn.Embedding(rows, width, dtype=torch.bfloat16)
    order = torch.randperm(used, generator=generator) * (rows // used)
    (table(order) * torch.randn(used, width, generator=generator).bfloat16()).sum().backward()
    return [table.weight.grad.float()]


PROFILES = {
    "autocast": lambda generator: mixed_precision(transformer(8192, 4, tied=True), lambda: text(generator)),
    "accumulated": lambda generator: mixed_precision(transformer(8192, 4, tied=True), lambda: text(generator), passes=2),
    "untied": lambda generator: mixed_precision(transformer(12288, 2, tied=False), lambda: text(generator)),
    "embedding": sharded_embedding,
    "convnet": lambda generator: mixed_precision(residual_network(), lambda: images(generator)),
}


# ---- recordings ----


def gradients(profile, rank, seed):
    """The blocks of a rank's gradients, one parameter after the other. All ranks have the same weights, each its own batch."""
    import torch
    torch.set_num_threads(1)  # the same bits on machines with more processors
    torch.manual_seed(seed)
    found = [grad.numpy().ravel() for grad in PROFILES[profile](torch.Generator().manual_seed(1000 * seed + rank + 1))]
    return numpy.concatenate([grad[:len(grad) // BLOCK * BLOCK] for grad in found])


def replace_file(path, data):
    """Other processes see the file complete or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def record(profile, ranks, seed=1, folder=FOLDER):
    """The folder of a recording with at least so many ranks, which is made unless it is there."""
    import torch
    assert 1 <= ranks <= MOST_RANKS, f"a recording has 1 to {MOST_RANKS} ranks"
    made_by = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()[:16]
    header = {"profile": profile, "dtype": "float32", "block": BLOCK, "seed": seed, "torch": torch.__version__, "made_by": made_by}
    target = pathlib.Path(folder) / (profile if seed == 1 else f"{profile}-{seed}")
    target.mkdir(parents=True, exist_ok=True)
    described = target / "header.json"
    if not described.exists() or json.loads(described.read_text()) != header:
        described.unlink(missing_ok=True)
        for path in target.glob("rank*.f32"):
            path.unlink(missing_ok=True)
        replace_file(described, json.dumps(header).encode())
    for rank in range(ranks):
        path = target / f"rank{rank}.f32"
        if not path.exists():
            replace_file(path, gradients(profile, rank, seed).tobytes())
    return target


def load(folder, rank):
    return numpy.fromfile(folder / f"rank{rank}.f32", dtype=numpy.float32)


# ---- the encoded size ----


def kinds(values):
    """The fraction of blocks of each kind: all +0.0, bfloat16 without loss, low byte zero, and the rest."""
    bits = values.view(numpy.uint32).reshape(-1, BLOCK)
    used = numpy.bitwise_or.reduce(bits, axis=1)
    zero, half, three = used == 0, used & 0xFFFF == 0, used & 0xFF == 0
    return {"zero": float(zero.mean()), "bf16": float((half & ~zero).mean()), "24-bit": float((three & ~half).mean()), "raw": float((~three).mean())}


def encoded_part(fractions):
    """Encoded over raw bytes; the kind of a block takes two bits."""
    return 0.5 * fractions["bf16"] + 0.75 * fractions["24-bit"] + fractions["raw"] + 2 / (32 * BLOCK)


def sum_of(folder, ranks):
    """The sum in the order of the ranks, in float32."""
    total = load(folder, 0)
    for rank in range(1, ranks):
        total += load(folder, rank)
    return total


def describe(folder, ranks):
    """The kinds of a recording's blocks: `contributions` (the mean of the ranks) and `results`; c and r are their encoded parts."""
    each = [kinds(load(folder, rank)) for rank in range(ranks)]
    contributions = {kind: sum(fractions[kind] for fractions in each) / ranks for kind in each[0]}
    results = kinds(sum_of(folder, ranks))
    return {"ranks": ranks, "elements": len(load(folder, 0)), "contributions": contributions, "results": results,
            "c": encoded_part(contributions), "r": encoded_part(results)}
