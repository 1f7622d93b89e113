"""Trains a small model, each rank on data of its own, through losses and returns of nodes (addend.torch.ElasticState)."""
import hashlib

import torch

import addend.torch
from common import RANK, file, finish, gate, outcome, parameters


def main():
    p = parameters()
    report = {"began_at": None, "returned": 0}
    torch.manual_seed(RANK)  # different weights on every rank: the state has to come from a single rank
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def train():
        addend.torch.init()
        state = addend.torch.ElasticState(model, optimizer, notes=[])
        state.sync()
        report["began_at"] = state.step
        while state.step < p["steps"] or report["returned"] < p.get("returns", 0):
            generator = torch.Generator().manual_seed(1000 * state.step + RANK)
            data = torch.randn(4, 8, generator=generator)
            optimizer.zero_grad()
            model(data).square().mean().backward()
            handles = [addend.torch.push_pull_async(parameter.grad, name=name) for name, parameter in model.named_parameters()]
            for parameter, handle in zip(model.parameters(), handles):
                parameter.grad.copy_(addend.torch.synchronize(handle))
            optimizer.step()
            state.step += 1
            state.notes.append(state.step)
            file("rounds").write_text(str(state.step))
            if state.step == 3 and report["began_at"] == 0:
                gate("running")
            report["returned"] += state.commit()
        report["notes"] = state.notes == list(range(1, state.step + 1))
        report["present"] = addend.torch.nodes_present()
        addend.torch.shutdown()

    ended = outcome(train)
    momenta = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
    values = [*model.state_dict().values(), *momenta]
    report["checksum"] = hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()
    finish({**ended, **report})


main()
