"""The Python package on the PyTorch of newer Debian releases: services of this machine, trainers of the other."""
import os
import subprocess

import pytest

from tests.newer_debian import root

pytestmark = pytest.mark.skipif(bool(root.unavailable()), reason=root.unavailable())
LONGEST_S = 900
# Of tests/python: each runs inside as a whole, with the miniature agent.
PACKAGE = ["test_numpy", "test_torch", "test_cross_barrier", "test_distributed_optimizer", "test_compression", "test_ddp", "test_ddp_state", "test_horovod",
           "test_join", "test_replicas", "test_shadow"]
# Of tests/cluster: services outside, ranks inside.
CLUSTERS = ["tests/cluster/test_training.py::test_weights_are_those_of_the_reference_bit_for_bit", "tests/cluster/test_horovod.py", "tests/cluster/test_replicas.py"]


@pytest.fixture(scope="module", params=root.PYTORCH)
def python(request, tmp_path_factory):
    try:
        return request.param, root.python_of(request.param, tmp_path_factory.mktemp(request.param))
    except (RuntimeError, subprocess.TimeoutExpired) as why:  # the mirror, or the way to it
        pytest.skip(f"no root file system of {request.param} can be made here: {str(why)[:300]}")


def run(command, **variables):
    done = subprocess.run([str(word) for word in command], cwd=root.ROOT, timeout=LONGEST_S, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "PYTHONPATH": f"{root.ROOT}/python:{root.ROOT}", "PYTHONDONTWRITEBYTECODE": "1", **variables})
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def test_addend_torch_is_imported(python):
    suite, program = python
    said = run([program, "-c", "import addend.torch, torch; print(torch.__version__)"])
    assert said.splitlines()[-1].startswith(root.PYTORCH[suite] + "."), said


def test_the_package_does_what_its_tests_say(python):
    said = run([python[1], "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *(f"tests/python/{name}.py" for name in PACKAGE)])
    assert "passed" in said and "skipped" not in said, said[-3000:]


def test_ranks_of_a_cluster_train(python):
    said = run(["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *CLUSTERS], ADDEND_TEST_PYTHON=str(python[1]))
    assert "passed" in said and "skipped" not in said, said[-3000:]
