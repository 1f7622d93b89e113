"""The order of waiting between GPU streams, with CUDA's streams replaced by a list of their calls."""

import threading

import pytest

torch = pytest.importorskip("torch")

from addend.torch import _gpu  # noqa: E402
from addend.torch._handle import Handle  # noqa: E402


class _Stream:
    def __init__(self, name, told):
        self.name, self.told = name, told
        self.device = torch.device("cuda:0")

    def wait_stream(self, other):
        self.told.append((self.name, other.name))


@pytest.fixture
def told(monkeypatch):
    """Every thread's current stream has the thread's name; the list of (waiting, awaited)."""
    waits, streams = [], {}

    def current(_=None):
        name = threading.current_thread().name
        return streams.setdefault(name, _Stream(name, waits))

    monkeypatch.setattr(torch.cuda, "current_stream", current)
    return waits


class _OnGpu:
    """A tensor of a GPU, as far as its stream is asked for."""

    is_cuda = True
    device = torch.device("cuda:0")


def _wait_in(name, handle):
    results = []
    thread = threading.Thread(target=lambda: results.append(handle.wait()), name=name)
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("several", [False, True])
def test_a_later_wait_is_for_the_stream_that_made_the_result(told, monkeypatch, several):
    monkeypatch.setattr(torch, "is_tensor", lambda one: isinstance(one, (_OnGpu, torch.Tensor)))
    made = [torch.zeros(1), _OnGpu()] if several else _OnGpu()
    handle = Handle([], lambda: made)
    assert _wait_in("maker", handle) is made
    assert told == []
    assert _wait_in("maker", handle) is made
    assert told == []
    assert _wait_in("later", handle) is made
    assert told == [("later", "maker")]


def test_results_in_host_memory_ask_for_no_stream(told):
    handle = Handle([], lambda: torch.zeros(1))
    _wait_in("maker", handle)
    _wait_in("later", handle)
    assert told == []


def test_work_beside_the_model_has_one_stream_in_all_threads(told, monkeypatch):
    monkeypatch.setattr(_gpu, "_side", {})
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: _Stream("side", told))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    device = torch.device("cuda:0")
    first = _gpu.beside(device, after_current=True)
    assert told == [("side", threading.current_thread().name)]
    found = []
    thread = threading.Thread(target=lambda: found.append(_gpu.beside(device)))
    thread.start()
    thread.join()
    assert found == [first] and len(told) == 1
