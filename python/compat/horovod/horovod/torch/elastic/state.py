"""horovod.torch.elastic.state, by Addend."""

from addend.torch.elastic.state import *  # noqa: F401,F403
from addend.torch.elastic.state import (  # noqa: F401
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)
