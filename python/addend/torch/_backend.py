"""The backend "addend" of torch.distributed: init_process_group("addend").

Where all of a group's devices are Addend's, the group is a subclass of ProcessGroup. Newer versions
of PyTorch also take a subclass of Backend for some device types, below a process group of their
own; they forward less of what its works can do, so it is for groups with several backends.
"""

import logging
import os
import socket
import sys
import weakref
from typing import Any

import torch
import torch.distributed
import torch._C._distributed_c10d

from .. import _autostart, _core, _errors, init, is_initialized, rank, shutdown, size
from . import _works
from ._collectives import DELEGATED, Inner, delegating

# Their annotations differ between versions.
dist: Any = torch.distributed
c10d: Any = torch._C._distributed_c10d

_log = logging.getLogger("addend.torch")


def _takes_backends():
    try:
        return c10d.Backend(0, 1) is not None
    except (AttributeError, TypeError):
        return False


def _delegating(base):
    return delegating(base, [name for name in DELEGATED if hasattr(dist.ProcessGroupGloo, name)])


_Group: Any = _delegating(c10d.ProcessGroup)
_Backend: Any = _delegating(c10d.Backend) if _takes_backends() else None


def _shares_the_group():
    """Whether the group that PyTorch is making has other backends for other devices.

    PyTorch does not tell a backend's creator, so this looks at the map in PyTorch's own function;
    where there is none, every device is Addend's.
    """
    frame = sys._getframe()
    while frame is not None:
        config = frame.f_locals.get("backend_config")
        if hasattr(config, "get_device_backend_map"):
            return {str(one) for one in config.get_device_backend_map().values()} != {"addend"}
        frame = frame.f_back
    return False


def _machine():
    """Names this machine, or this container: ranks with the same name can have one agent."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return "%s %s" % (socket.gethostname(), boot)


def _init(own_rank, ranks, store):
    """Joins the job. Without a launcher's variables, the store tells which ranks share a machine."""
    if ranks == 1 or "LOCAL_RANK" in os.environ and not _autostart.wanted():
        return init(rank=own_rank, size=ranks)
    store = dist.PrefixStore("addend/%d/" % _job.number, store)
    store.set("machine/%d" % own_rank, _machine())
    machines = [store.get("machine/%d" % i).decode() for i in range(ranks)]
    here = [i for i, one in enumerate(machines) if one == machines[own_rank]]
    place = {"rank": own_rank, "size": ranks, "local_rank": here.index(own_rank), "local_size": len(here)}
    if not _autostart.wanted():
        return init(**place)
    if len(here) < ranks:
        names = sorted({one.split()[0] for one in machines})
        raise _errors.make_error(_errors.UNREACHABLE, (
            "no agent is on this machine, and the ranks are on %d machines (%s): start an agent on each "
            "(docs/pytorch.md, Launching), or set ADDEND_SOCKET"
        ) % (len(set(machines)), ", ".join(names[:8])))
    if own_rank == 0:
        try:
            store.set("socket", _autostart.start(ranks))
        except _errors.Error as error:
            store.set("socket", "!" + str(error))
            raise
    path = store.get("socket").decode()
    if path.startswith("!"):
        raise _errors.make_error(_errors.UNREACHABLE, path[1:])
    init(path, **place)
    _autostart.hold(os.path.dirname(path))


class _Job:
    """The job of the default process group. Made by a group, it is left with that group."""

    def __init__(self):
        self._context = None  # that the last default group made
        self.number = 0  # of the default group: how many this process has had

    def join(self, wanted_rank, wanted_size, store):
        """Joins, unless the script has called addend.torch.init()."""
        self.number += 1
        self.leave(self._context)
        if is_initialized():
            if (rank(), size()) != (wanted_rank, wanted_size):
                raise _errors.make_error(_errors.INVALID, (
                    "this process is rank %d of %d in the Addend job that it has joined, and cannot be rank %d of "
                    "%d of a process group; give init_process_group() the same, or call it first"
                ) % (rank(), size(), wanted_rank, wanted_size))
            return None
        _init(wanted_rank, wanted_size, store)
        self._context = _core.context()
        return self._context

    def leave(self, context):
        """Leaves the job that join() made, if it is still that of this process."""
        if context is None or context != self._context:
            return
        self._context = None
        if is_initialized() and _core.context() == context:
            shutdown()


_job = _Job()


_kept: "list[Any]" = []


class _Joined:
    """The common part of Addend's ProcessGroup and Addend's Backend."""

    def _join(self, options, kept):
        place, store = (options.group_rank, options.group_size), options.store
        ranks = list(options.global_ranks_in_group)
        self._leave = None
        if not ranks:
            context = _job.join(*place, store)
            self._leave = weakref.finalize(self, _job.leave, context)
            self._leave.atexit = False  # addend has its own
        elif not is_initialized():
            init()
        title = "process group %s" % options.group_id
        self.set_up(
            title,
            "torch.distributed/%d.%s/" % (_job.number, options.group_id),
            ranks or list(range(size())),
            Inner(title, dist.PrefixStore("%d/" % _job.number, store), *place, options.timeout),
            options.timeout,
            kept,
        )

    def shutdown(self):
        """Called by destroy_process_group() of newer versions."""
        self._inner.shutdown()
        if self._leave is not None:
            self._leave()

    def abort(self):
        self.shutdown()


class AddendGroup(_Joined, _Group):
    """A group of ranks; made by torch.distributed."""

    def __init__(self, options):
        place = (options.group_rank, options.group_size)
        try:
            _Group.__init__(self, options.store, *place)
        except TypeError:  # 1.13 has no such constructor, and that of 2.7 to 2.13 makes no subclass
            _Group.__init__(self, *place)
        self._join(options, _works.Kept())
        if hasattr(self, "_register_backend"):
            # C++ code finds here the functions that this class does not override. The last reference may then be
            # DistributedDataParallel's, which would wait for Gloo's threads while it holds the lock of
            # the interpreter that these need: so none is destroyed before the process ends.
            _kept.append(self._inner.gloo)
            self._register_backend(torch.device("cpu"), c10d.ProcessGroup.BackendType.GLOO, self._inner.gloo)
            if torch.cuda.is_available() and dist.is_nccl_available():
                self._register_backend(
                    torch.device("cuda"), c10d.ProcessGroup.BackendType.NCCL, self._inner.nccl())


if _Backend is not None:

    class AddendBackend(_Joined, _Backend):
        """Some devices of a group of ranks; made by torch.distributed."""

        def __init__(self, options):
            _Backend.__init__(self, options.group_rank, options.group_size)
            self._join(options, None)  # PyTorch keeps its works alive


def create(options):
    """Makes the group; `options` are torch.distributed's _DistributedBackendOptions."""
    try:
        return AddendBackend(options) if _Backend is not None and _shares_the_group() else AddendGroup(options)
    except _errors.Error as error:
        raise _works.as_dist_error(error, 'init_process_group("addend")') from None
