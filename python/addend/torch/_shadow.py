"""Shadow mode: runs Addend beside an unchanged training, to show the effect of a switch."""

from __future__ import annotations

import itertools
import queue
import statistics
import sys
import threading
import time
from typing import Any, TextIO, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .. import _core, _errors
from .. import init, is_initialized, shutdown, size
from .._core import Average, Max
from ._tensors import on_host, push_tensor, wire_dtype

# The time for which a backward pass waits for Addend before it continues without Addend for good.
_PATIENCE_S = 60
_CLEARLY = 1.1  # the ratio of times from which a recommendation follows

_instances = itertools.count()


def shadow(model: DistributedDataParallel, steps: int = 20, out: TextIO | None = None) -> Shadow:
    """Compares Addend with the process group of a DistributedDataParallel model, in `steps` steps.

    All ranks call it before the first backward pass, instead of registering a hook. The model's
    process group averages the gradients, as without shadow (with gradient_as_bucket_view and a
    number of ranks that is no power of two, within one rounding of those averages). In the first
    `steps` backward passes Addend averages a copy; then rank 0 prints one verdict on values and
    times to `out` (None: sys.stdout), and the ranks leave Addend. A failure of Addend appears in
    the verdict and nowhere else. Returns an object whose .report is None until the verdict and a
    dict afterwards. Joins the job (addend.torch.init) if this process has not joined yet, which
    waits for all ranks.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            "addend.torch.shadow takes a DistributedDataParallel model, not %s" % type(model).__name__
        )
    if steps < 1:
        raise ValueError("addend.torch.shadow needs at least one step, not %d" % steps)
    watcher = Shadow(model, steps, sys.stdout if out is None else out)
    cast(Any, model).register_comm_hook(watcher, _hook)
    watcher.join()
    return watcher


def _hook(watcher, bucket):
    return watcher.exchange(bucket)


class _Watch:
    """A thread that records when the last of several operations has ended, while others continue."""

    def __init__(self):
        self.end = None
        self.error = None
        self._operations = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="addend-shadow", daemon=True)
        self._thread.start()

    def add(self, operation):
        self._operations.put(operation)

    def close(self):
        self._operations.put(None)

    def join(self, timeout):
        """After close(): returns whether all operations have ended within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self):
        try:
            for operation in iter(self._operations.get, None):
                operation.wait()
        except Exception as error:  # pylint: disable=broad-except
            self.error = error
        self.end = time.monotonic()


class _Pass:
    """A backward pass under way, on both sides."""

    def __init__(self, number):
        self.number = number
        self.copies = []  # a _Copy per bucket
        self.error = None  # the first error of Addend
        self.start = time.monotonic()
        self.group, self.addend = _Watch(), _Watch()

    def close(self):
        self.group.close()
        self.addend.close()

    def wait(self):
        """Returns when Addend's results are there; raises its error, or TimeoutError after _PATIENCE_S."""
        self.close()
        self.group.join(None)
        if not self.addend.join(_PATIENCE_S):
            raise TimeoutError("its sums of a backward pass took longer than %d s" % _PATIENCE_S)
        if self.error or self.addend.error:
            raise self.error or self.addend.error


class _Copy:
    """A bucket on Addend's side: its average, and the largest element of any rank's contribution."""

    def __init__(self, bucket, prefix):
        buffer = bucket.buffer()
        self.buffer = buffer  # holds the process group's result later
        self.parameters = bucket.parameters()
        self.index = bucket.index()
        self.values = on_host(buffer, wire_dtype(buffer))
        if self.values.data_ptr() == buffer.data_ptr():
            self.values = self.values.clone()
        self.name = "%s/%d/%d %s" % (prefix, self.index, buffer.numel(), buffer.dtype)
        wide = self.values.double()
        finite = wide[wide.isfinite()].abs()
        self.largest = finite.max().reshape(1) if finite.numel() > 0 else torch.zeros(1).double()

    def push(self):
        """Starts the rounds and returns their handles."""
        return [
            push_tensor(self.values, self.values, self.name, Average, self.index),
            push_tensor(self.largest, self.largest, self.name + " largest", Max, self.index),
        ]

    def names(self):
        return [self.name, self.name + " largest"]


class Shadow:
    """The result of shadow(). `report` is None until the verdict."""

    def __init__(self, model, steps, out):
        self.report = None
        self._group = model.process_group
        self._ranks = dist.get_world_size(self._group)
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        self._prefix = "addend.shadow/%d" % next(_instances)
        self._steps = steps
        self._out = out
        self._joined_here = False
        self._error = None
        self._comparison = _Comparison(self._ranks)
        self._times = []  # (process group's, Addend's) of each pass, seconds
        self._bytes = 0
        self._passes = 0
        self._pass = None  # the pass that is compared
        self._pending = []  # (work, future, buffer) of the pass under way
        self._tensors = set()

    def join(self):
        try:
            if not is_initialized():
                init()
                self._joined_here = True
            if size() != self._ranks:
                raise ValueError("its job has %d ranks, and the process group %d" % (size(), self._ranks))
        except Exception as error:  # pylint: disable=broad-except
            self._error = error
            self._conclude()

    # ---- the hook ----

    def exchange(self, bucket):
        """Starts the bucket's average by the process group, and also by Addend until the verdict."""
        if bucket.index() == 0 or not self._pending:
            self._begin()
        current = self._pass
        if current is None:
            return self._reduce(bucket.buffer())
        copy = self._copy(current, bucket)
        # The two alternate in starting first.
        if current.number % 2 == 0:
            self._push(current, copy)
        future = self._reduce(bucket.buffer())
        current.group.add(self._pending[-1][0])
        if current.number % 2 == 1:
            self._push(current, copy)
        return future

    def _begin(self):
        self._pending = []
        if self._pass is not None:
            self._pass.close()  # the former backward pass ended with an error
            self._pass = None
        if self.report is None:
            self._pass = _Pass(self._passes)
            self._passes += 1
        # Runs at the end of the backward pass, before DDP reads the futures.
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _reduce(self, buffer):
        # DDP itself multiplies by 1 / ranks while it fills the bucket, and then sums.
        buffer.mul_(1.0 / self._ranks)
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        # Not the work's own future: its callbacks would run Python in a thread of the process
        # group, which aborts the process if the process ends at that moment.
        future = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else None)
        self._pending.append((work, future, buffer))
        return future

    def _copy(self, current, bucket):
        try:
            return _Copy(bucket, self._prefix)
        except Exception as error:  # pylint: disable=broad-except
            current.error = current.error or error
            return None

    def _push(self, current, copy):
        if current.error is not None:
            return
        try:
            self._tensors.update(copy.names())
            for one in copy.push():
                current.addend.add(one)
            current.copies.append(copy)
        except Exception as error:  # pylint: disable=broad-except
            current.error = error

    # ---- the end of a pass ----

    def _finish(self):
        pending, self._pending = self._pending, []
        for work, future, buffer in pending:
            work.wait()  # raises its failure, as DDP does
            future.set_result(buffer)
        current, self._pass = self._pass, None
        if current is None:
            return
        try:
            current.wait()
            self._note(current, pending)
        except Exception as error:  # pylint: disable=broad-except
            self._error = error
        if self._passes >= self._steps or self._error is not None:
            self._conclude()

    def _note(self, current, pending):
        group_end = current.group.end
        if pending[0][2].is_cuda:
            # On a GPU the end of the work means only that the work is in the stream.
            torch.cuda.current_stream(pending[0][2].device).synchronize()
            group_end = time.monotonic()
        self._times.append((group_end - current.start, current.addend.end - current.start))
        self._bytes = sum(copy.values.numel() * copy.values.element_size() for copy in current.copies)
        for copy in current.copies:
            self._comparison.add(copy, current.number, self._names)

    def _conclude(self):
        self.report = _report(self._comparison, self._times, self._error)
        self.report.update(ranks=self._ranks, bytes=self._bytes)
        self.report["verdict"] = _verdict(self.report)
        if dist.get_rank(self._group) == 0:
            print(self.report["verdict"], file=self._out, flush=True)
        self._leave()

    def _leave(self):
        try:
            if self._joined_here:
                shutdown()
            elif is_initialized():
                for name in self._tensors:
                    _core.undeclare(name)
        except _errors.Error:
            pass  # the job has failed, which the verdict reports
        self._tensors.clear()


class _Comparison:
    """The differences between the two averages."""

    def __init__(self, ranks):
        self._ranks = ranks
        self.largest = 0.0
        self.relative = 0.0
        self.worst = None  # the position of the largest `relative`: {"step", "bucket", "parameter"}
        self.within_rounding = True
        self.mismatched = 0

    def add(self, copy, step, names):
        ours = copy.values.double()
        theirs = copy.buffer.detach().cpu().double()
        both = ours.isfinite() & theirs.isfinite()
        alike = both | (ours == theirs) | (ours.isnan() & theirs.isnan())
        mismatched = int((~alike).sum())
        difference = torch.where(both, (ours - theirs).abs(), torch.zeros(()).double())
        largest, place = difference.max(0) if difference.numel() > 0 else (0.0, 0)
        scale = float(copy.largest)
        kind = torch.finfo(copy.values.dtype)
        # Both sum with at most ranks + 1 roundings, each of at most half a unit of the largest
        # partial sum.
        allowed = (self._ranks + 1) * kind.eps * (scale + kind.tiny)
        self.within_rounding = self.within_rounding and float(largest) <= allowed and mismatched == 0
        self.mismatched += mismatched
        self.largest = max(self.largest, float(largest))
        relative = float(largest) / scale if scale > 0 else 0.0
        if mismatched > 0:
            place = (~alike).double().argmax()
        if self.worst is None or mismatched > 0 or relative > self.relative:
            name = _parameter_at(copy.parameters, int(place), names)
            self.worst = {"step": step + 1, "bucket": copy.index, "parameter": name}
        self.relative = max(self.relative, relative)


def _parameter_at(parameters, place, names):
    """The name of the parameter whose gradient is at this position of a bucket's buffer."""
    for p in parameters:
        if place < p.numel():
            return names.get(id(p), "?")
        place -= p.numel()
    return "?"


def _report(comparison, times, error):
    report = {
        "steps": len(times),
        "error": None if error is None else "%s: %s" % (type(error).__name__, error),
        "agree": comparison.within_rounding and len(times) > 0,
        "largest_difference": comparison.largest,
        "largest_relative_difference": comparison.relative,
        "mismatched_nonfinite": comparison.mismatched,
        "worst": comparison.worst,
        "group_s": None,
        "addend_s": None,
        "ratio": None,
    }
    # The first pass includes the time of making connections, on both sides.
    measured = times[1:] or times
    if measured:
        report["group_s"] = statistics.median(group for group, _ in measured)
        report["addend_s"] = statistics.median(addend for _, addend in measured)
        report["ratio"] = report["addend_s"] / report["group_s"]
    return report


def _verdict(report):
    """The report in words."""
    lines = ["addend shadow: no step was compared"]
    if report["steps"] > 0:
        lines = ["addend shadow: %d steps, %d ranks, %.3g MB of gradients per step" % (
            report["steps"], report["ranks"], report["bytes"] / 1e6)]
    if report["error"] is not None:
        lines.append("  Addend failed, and the training was not disturbed: " + report["error"])
    if report["steps"] > 0:
        lines += [_values_in_words(report), _times_in_words(report)]
    lines.append("  " + _recommendation(report))
    return "\n".join(lines)


def _values_in_words(report):
    worst = report["worst"]
    where = "in %s at step %d" % (worst["parameter"], worst["step"])
    if report["mismatched_nonfinite"] > 0:
        return "  values: %d elements are infinite or NaN on one side only, the last of them %s" % (
            report["mismatched_nonfinite"], where)
    if report["largest_difference"] == 0:
        return "  values: the same bits"
    return "  values: %s; the largest difference is %.2g (%.2g of the largest gradient of its bucket), %s" % (
        "they agree within rounding" if report["agree"] else "they differ by MORE than rounding",
        report["largest_difference"], report["largest_relative_difference"], where)


def _times_in_words(report):
    return (
        "  time from the first bucket to the last average (median): process group %.3g ms, "
        "Addend %.3g ms, ratio %.2f\n"
        "  (both shared the processors and the links while they were measured: each is faster alone)"
        % (report["group_s"] * 1e3, report["addend_s"] * 1e3, report["ratio"])
    )


def _recommendation(report):
    if report["error"] is not None:
        return "Recommendation: do not switch before the cause is removed."
    if not report["agree"]:
        return "Recommendation: do not switch; report this difference."
    if report["ratio"] < 1 / _CLEARLY:
        return "Recommendation: switch to addend.torch.ddp_comm_hook."
    if report["ratio"] > _CLEARLY:
        return "Recommendation: stay; addendctl plan says whether CPU machines would change that."
    return "Recommendation: no clear difference; measure a run with addend.torch.ddp_comm_hook alone."
