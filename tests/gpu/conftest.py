import subprocess

import pytest

from tests.support.cluster import PYTHON


@pytest.fixture(scope="session", autouse=True)
def gpu():
    look = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)"
    if subprocess.run([PYTHON, "-c", look], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"no GPU that {PYTHON}'s PyTorch can use")
