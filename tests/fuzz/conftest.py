import random

import pytest


def pytest_addoption(parser):
    parser.addoption("--fuzz-seconds", type=int, default=60, help="for which each target runs")
    parser.addoption("--fuzz-seed", type=int, default=None, help="of what the targets try; default: a new one")


@pytest.fixture
def fuzz_seconds(request):
    return request.config.getoption("--fuzz-seconds")


@pytest.fixture
def fuzz_seed(request):
    seed = request.config.getoption("--fuzz-seed")
    return random.SystemRandom().randrange(1, 1 << 31) if seed is None else seed
