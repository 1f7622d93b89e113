import os

import pytest

# Debian 13's PyTorch has no libuv, and asks for it by default.
os.environ.setdefault("USE_LIBUV", "0")


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run every case, not only the sound subset of a plain run")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--full"):
        return
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.skip(reason="a case of scripts/test --full only"))
