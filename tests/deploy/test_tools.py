import pytest

from tests.deploy import chart, conftest


def test_helm_is_the_one_that_the_lock_file_pins():
    if conftest.MISSING:
        pytest.skip(conftest.MISSING)
    version = chart.helm("version", "--short")
    assert version.stdout.startswith("v3.6.2+"), version.stderr
