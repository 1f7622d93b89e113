"""Scripts on one machine as a launcher starts them, without an agent; and what torchrun needs."""
import os
import subprocess

import pytest

from tests.support.cluster import BIN_DIR, PATIENCE, PYTHON, ROOT
from tests.support.ports import free_port

# PyTorch 1.13 cannot read its own default 0 of these two with Python 3.11.
TORCHRUN_FLAGS = ("--redirects=1", "--tee=1")
_STORE = "import torch.distributed as d; d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)"


def skip_without_torchrun():
    if "without libuv" in subprocess.run([PYTHON, "-c", _STORE], capture_output=True, text=True, check=False).stderr:
        pytest.skip("this PyTorch has no libuv, without which no torchrun starts (Debian 13)")


def launched(program, size, **more):
    """Runs a program in processes with the variables of torchrun on one machine; their outputs, in the order of the ranks."""
    drop = ("ADDEND_SOCKET", "ADDEND_JOB", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    common = {name: value for name, value in os.environ.items() if name not in drop}
    common.update({"PYTHONPATH": f"{ROOT}/python", "ADDEND_BIN_DIR": str(BIN_DIR), "OMP_NUM_THREADS": "1", **more})
    if size > 1:
        common.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    ranks = []
    for rank in range(size):
        env = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else common
        ranks.append(subprocess.Popen([PYTHON, "-c", program], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    try:
        return [rank.communicate(timeout=60 * PATIENCE)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
