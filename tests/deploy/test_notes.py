"""The output of `helm install` about the open points of the installation."""
import pytest

from tests.deploy.chart import notes

OPEN = {
    "no TLS": ("tls.enabled=true", ["tls.enabled=true", "tls.secretName=addend-tls"]),
    "no servers' secret": ("secrets.servers", ["secrets.servers=servers"]),
    "no job secrets": ("secrets.jobs", ["secrets.jobs=jobs"]),
    "data is not encrypted": ("agent.encryptData=true", ["agent.encryptData=true", "secrets.jobs=jobs", "tls.enabled=true", "tls.secretName=addend-tls"]),
    "no NetworkPolicy": ("networkPolicy.enabled=true", ["networkPolicy.enabled=true"]),
    "no job memory limit": ("--job-memory-limit", ["summation.extraArgs={--job-memory-limit=2GiB}"]),
}
CLOSED = [setting for _, settings in OPEN.values() for setting in settings]


def test_the_default_installation_says_all_that_it_leaves_open():
    text = notes("default")
    assert "What this installation leaves open:" in text
    for what, (value, _) in OPEN.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"  - {what}")]
        assert value in line and line.endswith("closes it.")


@pytest.mark.parametrize("what", OPEN)
def test_what_is_closed_is_not_called_open(what):
    text = notes("default", *OPEN[what][1])
    assert f"  - {what}" not in text and "What this installation leaves open:" in text


def test_a_closed_installation_leaves_open_what_is_in_the_trainers_pods_alone():
    lines = [line for line in notes("default", *CLOSED).splitlines() if line.startswith("  - ")]
    assert len(lines) == 1 and lines[0].startswith("  - agents run in the trainers' pods"), lines


def test_a_network_policy_that_does_not_cover_the_servers_is_said():
    text = notes("default", *CLOSED, "summation.hostNetwork=true")
    assert "the NetworkPolicy does not cover the servers" in text and "summation.hostNetwork=false closes it." in text
