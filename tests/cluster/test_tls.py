"""Mutual TLS on the control plane: accepted peers, the reasons that refused peers get, and certificates that change under load."""
import pytest

from tests.support.certificates import Authority, Secret, flags
from tests.support.cluster import Cluster, PATIENCE, run_binary
from tests.support.grpc_process import health
from tests.support.processes import eventually
from tests.support.rounds import finish, goes_on, running


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path, "authority")


@pytest.fixture
def other(tmp_path):
    return Authority(tmp_path, "other")


def ask(cluster, *more):
    return run_binary("addendctl", "status", f"--scheduler={cluster.scheduler_address}", *more)


def is_alive(address, who):
    """True if the gRPC server at `address` accepts a new connection with the certificate in the folder `who`."""
    return health(address, tls=who) == "SERVING"


def test_a_cluster_trains_over_mutual_tls(tmp_path, authority):
    with Cluster(tmp_path, nodes=2, local_size=2, cpu_servers=1, common_flags=flags(authority.sign("all"))) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        assert len(cluster.addendctl("status")["servers"]) == 3, "addendctl speaks TLS too"
        assert cluster.addendctl("why", "job")["job"] == "job", "with agents and servers as well"
        finish(ranks)
        for process in [cluster.scheduler, *cluster.servers, *cluster.agents.values()]:
            assert "the control plane is mutual TLS" in process.text(), process.name


@pytest.mark.parametrize("service", ["scheduler", "summation", "agent"])
def test_plain_text_requires_insecure(service):
    result = run_binary(f"addend-{service}", *(["--job=job"] if service == "agent" else []), env={"ADDEND_INSECURE": ""})
    assert result.returncode == 64
    assert result.stderr.splitlines()[-1] == (
        f"addend-{service}: gRPC would be plain text: give --tls-cert, --tls-key and --tls-ca, or accept it with --insecure")


def test_insecure_is_logged_as_a_plain_text_control_plane(tmp_path):
    with Cluster(tmp_path, nodes=1, cpu_servers=1) as cluster:
        for process in [cluster.scheduler, *cluster.servers, *cluster.agents.values()]:
            assert process.text().count("the control plane is plain text") == 1, process.name


def test_a_client_of_another_authority_is_refused_with_a_sentence(tmp_path, authority, other):
    with Cluster(tmp_path, nodes=1, common_flags=flags(authority.sign("all"))) as cluster:
        stranger = ask(cluster, *flags(other.sign("stranger")))
        assert stranger.returncode == 76
        assert f"no TLS with {cluster.scheduler_address}: its certificate is not one that --tls-ca=" in stranger.stderr
        assert len(stranger.stderr.splitlines()) == 1
        # A client that trusts the scheduler, but is not trusted.
        guest = ask(cluster, *flags(other.sign("guest", trusting=[authority])))
        assert guest.returncode == 76 and "it refuses the certificate --tls-cert=" in guest.stderr
        eventually(lambda: "a TLS handshake has failed: certificate verify failed" in cluster.scheduler.text(), 10 * PATIENCE,
                   "the reason in the scheduler's log")


def test_a_server_of_another_authority_cannot_join_and_says_why(tmp_path, authority, other):
    with Cluster(tmp_path, nodes=1, common_flags=flags(authority.sign("all"))) as cluster:
        result = run_binary(
            "addend-summation", f"--scheduler={cluster.scheduler_address}", "--listen=127.0.0.1:0", "--data-listen=127.0.0.1:0",
            "--http=127.0.0.1:0", "--health-listen=off", "--connect-timeout=2s", *flags(other.sign("stranger")))
        assert result.returncode == 76
        assert "its certificate is not one that --tls-ca=" in result.stderr.splitlines()[-1]


def test_a_client_without_a_certificate_is_refused(tmp_path, authority):
    with Cluster(tmp_path, nodes=1, common_flags=flags(authority.sign("all"))) as cluster:
        plain = ask(cluster)
        assert plain.returncode == 76 and "it speaks TLS: give --tls-cert, --tls-key and --tls-ca" in plain.stderr
        assert health(cluster.scheduler_address, tls=authority.sign("nobody"), anonymous=True) == "UNAVAILABLE"
        eventually(lambda: "a TLS handshake has failed: " in cluster.scheduler.text(), 10 * PATIENCE, "a line of the scheduler's log")


def test_a_client_that_wants_tls_learns_that_the_server_has_none(tmp_path, authority):
    with Cluster(tmp_path, nodes=1) as cluster:
        result = ask(cluster, *flags(authority.sign("client")))
        assert result.returncode == 76 and "it speaks plain text: start it with --tls-cert" in result.stderr


def test_a_common_server_name_is_accepted_for_every_address(tmp_path, authority):
    named = flags(authority.sign("all", names="DNS:addend"))
    with Cluster(tmp_path, nodes=2, cpu_servers=1, common_flags=[*named, "--tls-server-name=addend"]) as cluster:
        ranks = running(cluster)
        goes_on(ranks)
        refused = ask(cluster, *named)
        assert refused.returncode == 76 and "its certificate is not for 127.0.0.1" in refused.stderr
        finish(ranks)


@pytest.mark.parametrize("missing", ["cert", "key", "ca"])
def test_two_of_the_three_files_are_bad_configuration(authority, missing):
    given = [flag for flag in flags(authority.sign("all")) if not flag.startswith(f"--tls-{missing}=")]
    for binary in ("addend-scheduler", "addend-summation", "addend-agent", "addendctl"):
        result = run_binary(binary, *given, *(["--job=job"] if binary == "addend-agent" else ["status"] if binary == "addendctl" else []))
        assert result.returncode == 64
        assert result.stderr.splitlines()[-1] == (
            f"{binary}: --tls-{missing} is missing: mutual TLS needs --tls-cert, --tls-key and --tls-ca")


def test_certificates_and_authorities_change_under_load(tmp_path, authority, other):
    """As an authority is replaced: first all members trust both, then hold certificates of the new authority, then trust it alone."""
    secret = Secret(tmp_path / "secret")
    secret.show(authority.sign("first"))
    both = [authority, other]
    with Cluster(tmp_path, nodes=2, cpu_servers=2, common_flags=flags(secret.folder), scheduler_flags=["--lease=3s"]) as cluster:
        ranks = running(cluster)

        def everybody_lets_in(who):
            services = [cluster.scheduler, *cluster.servers, *cluster.agents.values()]
            for service in services:
                eventually(lambda: is_alive(f"127.0.0.1:{service.ports['grpc']}", who), 10 * PATIENCE, f"{service.name} to let it in")

        old, new = authority.sign("old", trusting=both), other.sign("new", trusting=both)
        assert is_alive(cluster.scheduler_address, old) and not is_alive(cluster.scheduler_address, new)
        secret.show(authority.sign("second", trusting=both))
        everybody_lets_in(new)
        goes_on(ranks)
        secret.show(other.sign("third", trusting=both))
        everybody_lets_in(other.sign("sceptic"))  # trusts the new authority only, so it checks the new certificates
        goes_on(ranks)
        secret.show(other.sign("fourth"))
        for service in [cluster.scheduler, *cluster.servers, *cluster.agents.values()]:
            eventually(lambda: not is_alive(f"127.0.0.1:{service.ports['grpc']}", old), 10 * PATIENCE, f"{service.name} to forget")
        goes_on(ranks)

        cluster.servers[0].kill()
        goes_on(ranks)
        joined = cluster.start_summation()
        cluster.await_ports(joined)
        eventually(lambda: "is in force" in cluster.scheduler.text(), 10 * PATIENCE, "a share for the server that has joined")
        goes_on(ranks)
        assert "lost the scheduler" not in cluster.agents[0].text(), "open connections stay"
        finish(ranks)
