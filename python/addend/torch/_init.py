"""init() with Horovod's arguments beside Addend's."""

from __future__ import annotations

import os
from typing import Any, Iterable, Union

from .. import _core
from ._sets import ProcessSet, add_process_set

Sets = Union[str, Iterable[Union[ProcessSet, Iterable[int]]]]


def init(
    socket: Any = None,
    rank: int | None = None,
    size: int | None = None,
    local_rank: int | None = None,
    local_size: int | None = None,
    job: str | None = None,
    connect_timeout: float | None = None,
    comm: Any = None,
    process_sets: Sets | None = None,
) -> None:
    """Joins the job: see addend.init().

    `comm`, which may be the first argument as with Horovod: a communicator of mpi4py, whose ranks
    these are, or the list of all ranks. `process_sets`: sets to add, or "dynamic", which is
    without effect: sets can always be added.
    """
    if socket is not None and not isinstance(socket, (str, bytes, os.PathLike)):
        socket, comm = None, socket
    if hasattr(comm, "Get_rank"):
        rank, size = comm.Get_rank(), comm.Get_size()
        near = comm.Split_type(_shared_type())
        local_rank, local_size = near.Get_rank(), near.Get_size()
    _core.init(socket, rank, size, local_rank, local_size, job, connect_timeout)
    if comm is not None and not hasattr(comm, "Get_rank"):
        _check_all(list(comm))
    if process_sets is not None and not isinstance(process_sets, str):
        for one in process_sets:
            if not isinstance(one, ProcessSet) or one.process_set_id is None:
                add_process_set(one)


def _shared_type() -> Any:
    from mpi4py import MPI

    return MPI.COMM_TYPE_SHARED


def _check_all(ranks: list[Any]) -> None:
    size = _core.place(_core.lib.addend_size)
    if ranks and sorted(ranks) != list(range(size)):
        raise ValueError(
            "init() takes all ranks of the job, 0..%d, and not %s: add_process_set() makes sets of some" % (size - 1, ranks)
        )
