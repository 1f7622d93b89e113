import pytest

from tests.support.cluster import BIN_DIR


@pytest.fixture(scope="session", autouse=True)
def binaries():
    missing = [name for name in ("addend-scheduler", "addend-summation", "addend-agent") if not (BIN_DIR / name).exists()]
    if missing:
        pytest.exit(f"{', '.join(missing)} not found in {BIN_DIR}: run scripts/build first", returncode=1)
