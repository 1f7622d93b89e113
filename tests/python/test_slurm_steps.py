"""addend run and addend serve as tasks of Slurm: what they take from its variables, and how they meet. tests/slurm has whole jobs."""
import os
import pathlib

import pytest

from addend import _horovod_variables, _slurm
from addend._services import ServicesError

VARIABLES = {
    "SLURM_JOB_ID": "71", "SLURM_STEP_ID": "2", "SLURM_PROCID": "5", "SLURM_NODEID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "4(x3)", "SLURMD_NODENAME": "gpu-07", "SLURM_SUBMIT_DIR": "/home/me/run",
}


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM")] + ["ADDEND_RENDEZVOUS"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_a_task_knows_its_place(variables):
    assert _slurm.Step.here() == _slurm.Step(job="71-0", number="2", node=1, nodes=3, task=1, tasks=4, name="gpu-07")
    variables.setenv("SLURM_RESTART_COUNT", "2")
    variables.setenv("SLURM_JOB_ID_HET_GROUP_0", "70")
    assert _slurm.Step.here().job == "70-2", "the first component's number"
    variables.delenv("SLURM_STEP_ID")
    assert _slurm.Step.here() is None, "a batch script is no step"


def test_processes_meet_in_the_jobs_folder(variables):
    step = _slurm.Step.here()
    assert step.folder(None) == "/home/me/run/.addend-71-0"
    variables.setenv("ADDEND_RENDEZVOUS", "/scratch")
    assert step.folder(None) == "/scratch/.addend-71-0"
    assert step.folder("/shared") == "/shared/.addend-71-0"


@pytest.mark.parametrize("text,counts", [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,4", [4, 4])])
def test_tasks_of_nodes_are_counted(text, counts):
    assert _slurm._counts(text) == counts


@pytest.mark.parametrize("name,value,sentence", [
    ("SLURM_STEP_TASKS_PER_NODE", "2,1", "2, 1 tasks: all need the same number"),
    ("SLURM_STEP_TASKS_PER_NODE", "two", "'two', which this release does not understand"),
    ("SLURM_JOB_NUM_NODES_HET_GROUP_0", "2", "several components of a heterogeneous job"),
])
def test_steps_that_cannot_run_are_refused(variables, name, value, sentence):
    variables.setenv(name, value)
    with pytest.raises(ServicesError, match=sentence):
        _slurm.Step.here()


def test_facts_are_those_of_the_step(tmp_path, monkeypatch):
    monkeypatch.setattr(_slurm, "_MEET_S", 0.3)
    meeting = _slurm.Meeting(str(tmp_path / ".addend-71-1"))
    with pytest.raises(ServicesError, match="addend run has announced no scheduler in .*.addend-71-1 within"):
        meeting.await_facts("addend run")
    (tmp_path / ".addend-71-0").mkdir()  # of the job before it was requeued
    meeting.prepare()
    assert not (tmp_path / ".addend-71-0").exists()
    meeting.announce(step="2", scheduler="n1:7070")
    assert meeting.await_facts("addend run")["scheduler"] == "n1:7070"
    assert meeting.await_facts("the first node", "2")["step"] == "2"
    with pytest.raises(ServicesError, match="the first node"):
        meeting.await_facts("the first node", "3")  # of a step that was killed
    assert (pathlib.Path(meeting.secret("job")).stat().st_mode & 0o777) == 0o600
    meeting.end()
    assert meeting.facts() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a folder of another user")
def test_the_folder_of_another_user_is_not_believed(tmp_path):
    meeting = _slurm.Meeting(str(tmp_path / ".addend-71-0"))
    meeting.prepare()
    meeting.announce(step="2", scheduler="attacker:7070")
    os.chown(meeting.folder, 12345, 12345)
    with pytest.raises(ServicesError, match="belongs to another user"):
        meeting.facts()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ServicesError, match="file/.addend-71-0 cannot be made"):
        _slurm.Meeting(str(tmp_path / "file" / ".addend-71-0")).prepare()


def test_horovods_variables_are_read_where_addends_are_not_set():
    environment = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90", "HOROVOD_LOG_LEVEL": "WARNING", "HOROVOD_GLOO_TIMEOUT_SECONDS": "0",
                   "ADDEND_LOG_LEVEL": "debug"}
    _horovod_variables.translate(environment)
    assert environment["ADDEND_STALL_TIMEOUT"] == "90s" and environment["ADDEND_LOG_LEVEL"] == "debug"
    assert "ADDEND_CONNECT_TIMEOUT" not in environment
