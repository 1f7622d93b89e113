"""The capabilities of a service on its machine while it runs."""
import os
import stat

import pytest

from tests.support.cluster import Cluster
from tests.support.rounds import finish, running

KEPT = {"CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_FOWNER": 3, "CAP_IPC_LOCK": 14}


def status_of(process):
    with open(f"/proc/{process.pid}/status") as status:
        return dict(line.split(":\t", 1) for line in status.read().splitlines() if ":\t" in line)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")
def test_services_give_up_what_they_do_not_need(tmp_path):
    with Cluster(tmp_path, nodes=1, cpu_servers=1, store=f"sqlite:{tmp_path}/store.db") as cluster:
        ranks = running(cluster)
        for process in [cluster.scheduler, *cluster.servers, *cluster.agents.values()]:
            status = status_of(process)
            for kind in ("CapPrm", "CapEff"):
                assert int(status[kind], 16) & ~sum(1 << bit for bit in KEPT.values()) == 0, (process.name, kind, status[kind])
            assert int(status["CapInh"], 16) == 0 and status["NoNewPrivs"] == "1", process.name
        assert stat.S_IMODE(os.stat(tmp_path / "store.db").st_mode) == 0o600, "it has the jobs' keys"
        finish(ranks)
