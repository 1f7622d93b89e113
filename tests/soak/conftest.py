import random

import pytest

from tests.cluster.conftest import binaries  # noqa: F401


def pytest_addoption(parser):
    parser.addoption("--soak-generations", type=int, default=200, help="jobs that come and go; at least 100")
    parser.addoption("--soak-seed", type=int, default=None, help="of the jobs; default: a new one")


@pytest.fixture
def soak_generations(request):
    return request.config.getoption("--soak-generations")


@pytest.fixture
def soak_seed(request):
    seed = request.config.getoption("--soak-seed")
    return random.SystemRandom().randrange(1 << 32) if seed is None else seed
