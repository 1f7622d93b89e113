"""Runs PyTorch's own tests of process groups, from the installed package, over the backend addend.

python run_distributed_tests.py [NAME...], with ADDEND_SOCKET where an agent for three ranks listens. Prints a line
per test: its name, and ok, skipped, or failed with the last line of the error.
"""
import os
import sys
import tempfile
import types
import unittest

# Children that are spawned import this file again.
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())
os.environ.update(BACKEND="addend", WORLD_SIZE="3", MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")


def stand_in():
    """For expecttest, of which Debian has no package: these tests use only its class."""
    module = types.ModuleType("expecttest")
    module.TestCase = type("TestCase", (unittest.TestCase,), {})
    module.ACCEPT = True
    module.assert_expected_inline = lambda *_, **__: None
    return module


sys.modules.setdefault("expecttest", stand_in())

import addend.torch  # noqa: E402, F401
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

for feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature.setdefault(feature, set()).add("addend")

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


class Result(unittest.TestResult):
    def _say(self, test, outcome):
        print(f"RESULT {test._testMethodName} {outcome}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self._say(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._say(test, "skipped")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self._say(test, "failed " + str(error[1]).strip().replace("\n", " ")[:2000])

    addError = addFailure


def main(names):
    loader = unittest.TestLoader()
    chosen = names or loader.getTestCaseNames(TestDistBackendWithSpawn)
    unittest.TestSuite(TestDistBackendWithSpawn(name) for name in chosen).run(Result())


if __name__ == "__main__":
    main(sys.argv[1:])
