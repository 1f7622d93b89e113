#!/usr/bin/python3
"""Learns handwritten digits by a script for Horovod: only the marked import is different.

    PYTHONPATH=python /usr/bin/python3 -m addend run -n 4 examples/digits_horovod.py

The data are the 1797 digits of 8x8 pixels that scikit-learn carries, so nothing is downloaded.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import addend.torch as hvd  # was: import horovod.torch as hvd

TEST_DIGITS = 360


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.classes = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images):
        return self.classes(self.features(images))


def load_data():
    """(digits to learn, digits to test), the same split everywhere."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    learn, test = order[TEST_DIGITS:], order[:TEST_DIGITS]
    return TensorDataset(images[learn], labels[learn]), TensorDataset(images[test], labels[test])


def loader_of(data, batch_size, shuffle):
    """Gives every rank its part of the data."""
    sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=shuffle)
    return DataLoader(data, batch_size=batch_size, sampler=sampler), sampler


def metric_average(value, name):
    """The mean of a number over all ranks."""
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train(model, optimizer, loader):
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def test(model, loader):
    """(loss, accuracy) over the parts of all ranks."""
    model.eval()
    loss, right, seen = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in loader:
            output = model(images)
            loss += nn.functional.cross_entropy(output, labels, reduction="sum").item()
            right += (output.argmax(1) == labels).sum().item()
            seen += len(labels)
    return metric_average(loss / seen, "test loss"), metric_average(right / seen, "test accuracy")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16, help="batch size of each rank")
    parser.add_argument("--base-lr", type=float, default=0.01, help="learning rate of a single rank; scaled by the number of ranks")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    return parser.parse_args()


def main():
    options = parse_options()
    hvd.init()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    learn, tests = load_data()
    learn_loader, sampler = loader_of(learn, options.batch_size, shuffle=True)
    test_loader, _ = loader_of(tests, 100, shuffle=False)

    model = Net()
    # The global batch grows with the ranks, and the learning rate with it.
    optimizer = torch.optim.SGD(
        model.parameters(), lr=options.base_lr * hvd.size(), momentum=options.momentum
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression
    )
    for epoch in range(1, options.epochs + 1):
        sampler.set_epoch(epoch)
        train(model, optimizer, learn_loader)
        loss, accuracy = test(model, test_loader)
        if hvd.rank() == 0:
            print("epoch %d: loss %.4f, accuracy %.4f" % (epoch, loss, accuracy), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
