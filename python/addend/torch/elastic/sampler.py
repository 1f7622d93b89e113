"""ElasticSampler: the data of an epoch, divided among the present ranks."""

from __future__ import annotations

import random
from typing import Any, Iterator, Sized

import torch

from ... import rank, size


class ElasticSampler(torch.utils.data.Sampler):
    """Gives each rank its part of a dataset, as torch.utils.data.DistributedSampler does, and knows
    which part of the epoch was processed: after a reset the rest is divided among the present ranks.

    Give it to a TorchState; call record_batch() after each batch, and set_epoch() at the end of an
    epoch. All ranks give the same `seed`.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in another order if shuffled, with nothing processed."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that every rank has processed a batch."""
        del batch_idx
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the unprocessed indices among the present ranks."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        missing = self.total_size - len(self.remaining_indices)
        # The first come twice where the parts do not come out even.
        indices = self.remaining_indices + self.remaining_indices[:missing]
        while len(indices) < self.total_size:  # fewer indices than ranks
            indices = indices + indices[: self.total_size - len(indices)]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
