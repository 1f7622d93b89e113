"""The annotations of the public API: complete, consistent, and of use to the type checker of a user's program."""

import importlib.util
import inspect
import pathlib
import re
import subprocess
import sys

import numpy
import pytest

from .conftest import DEADLINE_S, ROOT

# A comment "refused: WORD" marks a line that the checker has to refuse with a message that has the word.
ARRAYS = """
import numpy

import addend

addend.init(socket="/run/addend.sock", connect_timeout=30)
gradient = numpy.ones(3, numpy.float32)
total: float = float(addend.push_pull(gradient, "gradient", addend.Sum)[0])
handle = addend.push_pull_async([1.0, 2.0], "list", priority=2)
if addend.poll(handle):
    print(addend.synchronize(handle, copy=False, timeout=1.5).shape)
shared = addend.empty((2, 3), "float32", "shared")
addend.declare("later", 4, numpy.int64, op=addend.Max)
print(addend.rank() + addend.size(), addend.broadcast(gradient, root_rank=0, name="start"), addend.statistics()["rounds"])
try:
    addend.barrier()
except addend.PeerLostError as error:
    print(error.code + 1)
addend.undeclare("gradient")
addend.shutdown()

addend.push_pull(gradient)  # refused: name
addend.push_pull(gradient, "gradient", "sum")  # refused: Op
addend.synchronize(gradient)  # refused: ArrayHandle
place: str = addend.rank()  # refused: int
addend.init(rank="0")  # refused: rank
addend.allreduce(gradient)  # refused: allreduce
"""
TENSORS = """
import torch

import addend.torch as hvd
from addend.torch.compression import Bucket, Scheme

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters(), compression=hvd.Compression.fp16
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer.synchronize()
with optimizer.skip_synchronize():
    optimizer.step()
one = hvd.allreduce(torch.ones(2), op=hvd.Sum).sum()
handle = hvd.grouped_allreduce_async([one], name="group")
print(hvd.synchronize(handle)[0].shape, hvd.allgather(one).dtype, handle.done())
state = hvd.HookState(model, hvd.TopK(0.01))
state.load_state_dict(state.state_dict())
elastic = hvd.ElasticState(model, optimizer, step=0, epoch=1)
if elastic.commit():
    hvd.join()


class Own(Scheme):
    def start(self, bucket: Bucket) -> "hvd.Handle[torch.Tensor]":
        return hvd.allreduce_async_(bucket.buffer, name=bucket.name)


hvd.allreduce("text")  # refused: Tensor
hvd.allreduce(torch.ones(2), op="sum")  # refused: Op
hvd.DistributedOptimizer(model)  # refused: Optimizer
hvd.broadcast(torch.ones(2))  # refused: root_rank
hvd.HookState(model, 3)  # refused: HookState
"""


PROGRAMS = {"arrays": ARRAYS, "tensors": TENSORS}


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """{file name: {line: messages}} of one run over the package and the programs, which are checked strictly."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: scripts/test installs what is missing")
    folder = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (folder / f"{name}.py").write_text(text)
    # The annotations of NumPy 2 are not those of the oldest Python that the package supports.
    version = [f"--python-version={sys.version_info[0]}.{sys.version_info[1]}"] if int(numpy.__version__.split(".")[0]) >= 2 else []
    command = [sys.executable, "-m", "mypy", "--config-file", "setup.cfg", *version, "--no-color-output", "--show-absolute-path", "python/addend", folder]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=DEADLINE_S * 3, cwd=ROOT)
    assert result.returncode in (0, 1) and "checked" in result.stdout, result.stdout + result.stderr
    found = {}
    for path, line, message in re.findall(r"^(.*?):(\d+): error: (.*)", result.stdout, re.M):
        messages = found.setdefault(pathlib.Path(path).name if path.startswith(str(folder)) else path, {})
        messages[int(line)] = messages.get(int(line), "") + message
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_users_program_is_checked(checked, name):
    lines = PROGRAMS[name].splitlines()
    wanted = {number: line.rpartition("refused: ")[2] for number, line in enumerate(lines, 1) if "# refused: " in line}
    found = checked.get(f"{name}.py", {})
    assert set(found) == set(wanted), found
    for number, word in wanted.items():
        assert word in found[number], (lines[number - 1], found[number])


def test_the_package_agrees_with_its_annotations(checked):
    assert set(checked) == {f"{name}.py" for name in PROGRAMS}, checked


def functions_of(module):
    """Yields (name, function) of the public functions, and of the public methods of the public classes."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for method, function in inspect.getmembers(value, inspect.isroutine):
                if (method == "__init__" or not method.startswith("_")) and inspect.isfunction(function) and function.__module__.startswith("addend"):
                    yield f"{name}.{method}", function


@pytest.mark.parametrize("name", ["addend", "addend.torch", "addend.torch.byteps", "addend.torch.compression", "addend.torch.elastic"])
def test_public_functions_are_annotated(name):
    module = importlib.import_module(name)
    bare = []
    for function_name, function in functions_of(module):
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
        if signature.return_annotation is signature.empty or any(p.annotation is p.empty for p in parameters):
            bare.append(f"{name}.{function_name}{signature}")
    assert not bare, "annotate:\n" + "\n".join(bare)


def test_the_package_says_that_it_is_typed():
    assert (pathlib.Path(importlib.import_module("addend").__file__).parent / "py.typed").exists()
