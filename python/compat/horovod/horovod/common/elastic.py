"""horovod.common.elastic, by Addend."""

from addend.torch.elastic import ObjectState, State, run_fn

__all__ = ["ObjectState", "State", "run_fn"]
