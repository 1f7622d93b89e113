"""These tests need two RDMA devices that reach each other: tests/rdma/vm has them, and so has a machine with two ports."""
import pathlib

import pytest

DEVICES = sorted(path.name for path in pathlib.Path("/sys/class/infiniband").glob("*"))


def pytest_collection_modifyitems(items):
    if len(DEVICES) >= 2:
        return
    for item in items:
        item.add_marker(pytest.mark.skip(reason="needs two RDMA devices: tests/rdma/vm is a machine with two"))
