#!/usr/bin/python3
"""Trains a small GPT-2 with Transformers' Trainer, or with Accelerate, over the process group "addend".

    addend run -n 2 -- examples/trainer.py
    addend run -n 2 -- examples/trainer.py --library=accelerate

Needs the packages transformers and accelerate; ends with status 77 where these are missing. The
line that matters is marked: both libraries use the process group that they find.
"""

import argparse
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from train_char_transformer import load_text

import addend.torch  # noqa: F401  (not needed where Addend is installed: PyTorch finds it)

try:
    from accelerate import Accelerator
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
except ImportError:
    Trainer = None

_CANNOT_RUN = 77
CONTEXT = 64
BATCH = 4


class Pieces(Dataset):
    """Pieces of the text, as Transformers' models take them."""

    def __init__(self, text, count):
        self._pieces = [text[i * CONTEXT : (i + 1) * CONTEXT] for i in range(count)]

    def __len__(self):
        return len(self._pieces)

    def __getitem__(self, number):
        return {"input_ids": self._pieces[number], "labels": self._pieces[number]}


def make_model(characters):
    torch.manual_seed(7)
    sizes = {"n_positions": CONTEXT, "n_embd": 64, "n_layer": 2, "n_head": 4}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=characters, bos_token_id=0, eos_token_id=0, **sizes, **dropout))


def with_trainer(model, pieces, steps):
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=3e-3, use_cpu=True,
            logging_steps=1, report_to=[], save_strategy="no", seed=7, disable_tqdm=True, lr_scheduler_type="constant",
        )
        trainer = Trainer(model, arguments, train_dataset=pieces)
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def with_accelerate(model, pieces, steps):
    accelerator = Accelerator(cpu=True)
    sampler = DistributedSampler(pieces, accelerator.num_processes, accelerator.process_index, seed=7)
    loader = DataLoader(pieces, BATCH, sampler=sampler)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    losses = []
    for _, batch in zip(range(steps), loader):
        optimizer.zero_grad()
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--library", choices=("trainer", "accelerate"), default="trainer")
    parser.add_argument("--backend", choices=("addend", "gloo"), default="addend")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if Trainer is None:
        print("this example needs the packages transformers and accelerate")
        sys.exit(_CANNOT_RUN)
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)  # the line that matters
    text, characters = load_text()
    pieces = Pieces(text, BATCH * dist.get_world_size() * options.steps)
    train = with_trainer if options.library == "trainer" else with_accelerate
    losses = train(make_model(characters), pieces, options.steps)
    if dist.get_rank() == 0:
        for step, loss in enumerate(losses, 1):
            print("step %d: loss %.4f" % (step, loss), flush=True)
    dist.barrier()
    time.sleep(0.5)  # see the end of train_char_transformer.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
