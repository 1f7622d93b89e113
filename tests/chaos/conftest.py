import random

import pytest


def pytest_addoption(parser):
    parser.addoption("--chaos-seed", type=int, default=None, help="of the random events; default: a new one")
    parser.addoption("--chaos-events", type=int, default=20)


@pytest.fixture
def chaos_seed(request):
    seed = request.config.getoption("--chaos-seed")
    return random.SystemRandom().randrange(1 << 32) if seed is None else seed


@pytest.fixture
def chaos_events(request):
    return request.config.getoption("--chaos-events")
