"""An elastic script of Horovod's kind: a model, an optimizer, a sampler, and a commit after each batch."""
import time

import common
import torch

import horovod.torch as hvd
from horovod.torch.elastic import ElasticSampler, TorchState, run


def main():
    parameters = common.parameters()
    hvd.init()
    torch.manual_seed(hvd.rank())  # different weights, as after a restart: the state comes from a single rank
    data = torch.randn(64, 8, generator=torch.Generator().manual_seed(5))
    dataset = torch.utils.data.TensorDataset(data, data.sum(1, keepdim=True).tanh())
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    sampler = ElasticSampler(dataset)
    state = TorchState(model, optimizer, sampler=sampler, epoch=0, losses=[])
    resets = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @run
    def train(state):
        for state.epoch in range(state.epoch, parameters["epochs"]):
            loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=state.sampler)
            for index, (inputs, targets) in enumerate(loader):
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                optimizer.step()
                state.losses.append(float(hvd.allreduce(loss.detach(), name="loss")))
                state.sampler.record_batch(index, 4)
                state.commit()
                common.file("progress").write_text(str(len(state.losses)))
                # A rank that is alone waits longer: another has to import PyTorch before it can come.
                is_alone = float(hvd.allreduce(torch.ones(1), op=hvd.Sum, name="ranks")) == 1
                time.sleep(parameters["pause_s"] * (10 if is_alone else 1))
            state.sampler.set_epoch(state.epoch + 1)

    train(state)
    weights = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    hvd.shutdown()
    common.finish({"losses": state.losses, "weights": weights.tolist(), "resets": len(resets)})


main()
