"""The Python package on the PyTorch of newer Debian releases: services of this machine, trainers of the other."""
import re

import pytest

from tests.debian import root

# Of tests/python: each runs inside as a whole, with the miniature agent.
PACKAGE = ["test_numpy", "test_torch", "test_cross_barrier", "test_distributed_optimizer", "test_compression", "test_ddp", "test_ddp_state", "test_horovod",
           "test_backend", "test_join", "test_replicas", "test_shadow"]
# Of tests/cluster: services outside, ranks inside.
# The other cases of test_backend.py start this release's services inside of the root.
CLUSTERS = [
    "tests/cluster/test_training.py::test_weights_are_those_of_the_reference_bit_for_bit",
    "tests/cluster/test_backend.py::test_weights_are_the_hooks_bit_for_bit_while_a_server_is_killed",
    "tests/cluster/test_backend.py::test_groups_of_some_ranks_sum_at_the_same_time",
    "tests/cluster/test_horovod.py",
    "tests/cluster/test_horovod_names.py",
    "tests/cluster/test_horovod_elastic.py",
    "tests/cluster/test_replicas.py",
]


@pytest.fixture(scope="module", params=root.PYTORCH)
def python(request, tmp_path_factory):
    return request.param, root.python_or_skip(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    """The Python that also has Accelerate and Transformers."""
    return root.python_or_skip("forky", tmp_path_factory.mktemp("newest"))


def expect_passed(said, only_reason):
    """No test was skipped for another reason."""
    assert "passed" in said and all(only_reason in why for why in re.findall(r"^SKIPPED .*", said, re.M)), said[-3000:]


def test_addend_torch_is_imported(python):
    suite, program = python
    said = root.run([program, "-c", "import addend.torch, torch; print(torch.__version__)"])
    assert said.splitlines()[-1].startswith(root.PYTORCH[suite] + "."), said


BY_NAME_ALONE = """
import torch, torch.distributed as dist
dist.init_process_group("addend")
tensor = torch.ones(2)
dist.all_reduce(tensor)
print("sum", tensor.tolist(), flush=True)
dist.destroy_process_group()
"""


def test_pytorch_finds_the_backend_of_an_installed_package(python, tmp_path):
    root.run(["/usr/bin/python3", "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--target", tmp_path / "installed",
              root.ROOT / "python"])
    said = root.run(["/usr/bin/python3", "-m", "addend", "run", "-n", "2", "--", python[1], "-c", BY_NAME_ALONE],
                    PYTHONPATH=str(tmp_path / "installed"), ADDEND_BIN_DIR=str(root.ROOT / "build" / "bin"))
    assert said.count("sum [2.0, 2.0]") == 2, said


@pytest.mark.full
def test_the_package_does_what_its_tests_say(python):
    said = root.run([python[1], "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-W", "ignore", *(f"tests/python/{name}.py" for name in PACKAGE)])
    expect_passed(said, "from PyTorch 2.7 on")


def test_ranks_of_a_cluster_train(python):
    said = root.run(["/usr/bin/python3", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *CLUSTERS], ADDEND_TEST_PYTHON=str(python[1]))
    expect_passed(said, "a case of scripts/test --full only")


def example(python, script, *arguments):
    """The lines of rank 0 of an example on two nodes with two ranks each and a summation server."""
    said = root.run(["/usr/bin/python3", "-m", "addend", "run", "--nodes", 2, "-n", 2, "--servers", 1, "--", python, f"examples/{script}", *arguments])
    return re.findall(r"^\[0\] (.*)$", said, re.M)


def losses(lines):
    return [float(loss) for line in lines for loss in re.findall(r"^step \d+: loss ([0-9.]+)$", line)]


@pytest.mark.parametrize("library", ["trainer", "accelerate"])
def test_transformers_trainer_and_accelerate_have_gloos_losses(newest, library):
    by_backend = {backend: losses(example(newest, "trainer.py", f"--library={library}", f"--backend={backend}")) for backend in ("addend", "gloo")}
    assert len(by_backend["gloo"]) == 20 and by_backend["gloo"][-1] < by_backend["gloo"][0]
    assert by_backend["addend"] == pytest.approx(by_backend["gloo"], rel=1e-3)


@pytest.mark.full
def test_a_compiled_model_has_the_weights_of_the_reference(newest):
    sums = {reduce: example(newest, "train_char_transformer.py", "--steps=20", "--compile", f"--reduce={reduce}")[-1] for reduce in ("backend", "reference")}
    assert sums["backend"] == sums["reference"] and "SHA-256 of the weights" in sums["backend"]


@pytest.mark.full
def test_hybrid_sharding_learns_by_a_hook_and_by_a_mesh_alike(newest):
    found = {by: losses(example(newest, "hsdp.py", "--steps=40", f"--by={by}")) for by in ("hook", "mesh")}
    assert len(found["hook"]) == 40 and found["hook"][-1] < found["hook"][0]
    assert found["mesh"] == pytest.approx(found["hook"], rel=1e-3)
