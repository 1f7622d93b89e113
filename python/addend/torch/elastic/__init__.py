"""Elastic training under Horovod's names: hvd.elastic.run, TorchState, ElasticSampler.

    @hvd.elastic.run
    def train(state):
        for state.batch in range(state.batch, batches):
            step(state.model, state.optimizer)
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, batch=0))

After a failure every rank goes back to its last commit, joins the job's next generation, which waits
for a replacement of the lost node, and continues from the latest commit of any rank.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, TypeVar

from ... import init, shutdown
from ..._errors import INVALID, PERMISSION, RESOURCES, VERSION, Error
from .sampler import ElasticSampler
from .state import (
    HostsUpdatedInterrupt,
    ModelStateHandler,
    ObjectState,
    OptimizerStateHandler,
    SamplerStateHandler,
    State,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)

T = TypeVar("T")

__all__ = [
    "ElasticSampler",
    "HostsUpdatedInterrupt",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "run",
    "run_fn",
    "set_handler_registry",
]

_TIMEOUT_S = 600.0
_ATTEMPTS = 3  # from the same commit
_FOR_GOOD = (INVALID, VERSION, PERMISSION, RESOURCES)


def run(func: Callable[..., T]) -> Callable[..., T]:
    """Makes a training function, whose first argument is a State, go on after the loss and the return
    of nodes. Errors of Addend lead back to the last commit: not those that a new attempt cannot mend
    (a wrong argument, a missing permission), nor the fourth without a commit since the first. These
    and other exceptions end the training.

    Ranks wait ADDEND_ELASTIC_TIMEOUT seconds for each other (HOROVOD_ELASTIC_TIMEOUT, or 600). No
    operation may stand between init() and the function: a replacement would call it while others
    wait in state.sync().
    """
    return run_fn(func, _join_again)


def run_fn(func: Callable[..., T], reset: Callable[[], None]) -> Callable[..., T]:
    """As run(), with the function that joins the job again."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> T:
        attempts, commits = 0, -1
        while True:
            try:
                state.sync()
                return func(state, *args, **kwargs)
            except Error as error:
                attempts = attempts + 1 if state.commits == commits else 1
                commits = state.commits
                if error.code in _FOR_GOOD or attempts > _ATTEMPTS:
                    raise
                state.restore()
            except HostsUpdatedInterrupt:
                pass  # nothing is lost: the state is committed
            reset()
            state.on_reset()

    return wrapper


def _join_again() -> None:
    shutdown()
    variables = ("ADDEND_ELASTIC_TIMEOUT", "HOROVOD_ELASTIC_TIMEOUT")
    given = next((os.environ[name] for name in variables if os.environ.get(name)), None)
    init(connect_timeout=_TIMEOUT_S if given is None else float(given))
