"""The cost of a request to the HTTP port of any service: no more than the requested answer."""
import socket

import pytest

from tests.support.cluster import Cluster, PATIENCE

HEAD_MOST, HEADERS_MOST = 16 << 10, 100  # lib/telemetry/http_requests.h


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("http"), nodes=1, cpu_servers=1) as running:
        yield running


@pytest.fixture(params=["scheduler", "summation", "agent"])
def port(cluster, request):
    return {"scheduler": cluster.scheduler, "summation": cluster.servers[0], "agent": cluster.agents[0]}[request.param].ports["http"]


def ask(port, request):
    """Returns all bytes of the answer, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20 * PATIENCE) as connection:
        connection.sendall(request)
        answer = b""
        while True:
            part = connection.recv(1 << 16)
            if not part:
                return answer
            answer += part


def status_of(answer):
    return int(answer.split(b" ", 2)[1])


def get(path, *headers):
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: a", *headers, "", ""]).encode()


def test_ranges_are_not_answered(port):
    whole = ask(port, get("/metrics"))
    assert status_of(whole) == 200 and b"addend_build_info" in whole
    answer = ask(port, get("/metrics", "Range: bytes=" + ",".join(["0-"] * 2600)))
    assert status_of(answer) == 200 and len(answer) < 2 * len(whole)
    one = ask(port, get("/metrics", "Range: bytes=0-9"))
    assert status_of(one) == 200 and b"addend_build_info" in one


def test_a_range_is_not_hidden_behind_another_header(port):
    answer = ask(port, get("/metrics", "Connection: x\nRange: bytes=0-9"))
    assert status_of(answer) == 400 and b"does not end as HTTP says" in answer


def test_headers_have_a_number_and_a_size(port):
    few = ask(port, get("/healthz", *[f"A{i}: b" for i in range(HEADERS_MOST - 1)]))
    assert status_of(few) == 200
    many = ask(port, get("/healthz", *[f"A{i}: b" for i in range(HEADERS_MOST)]))
    assert status_of(many) == 431 and b"101 headers, more than 100" in many
    large = ask(port, get("/healthz", *[f"A{i}: {'b' * 4000}" for i in range(5)]))
    assert status_of(large) == 431 and f"more than {HEAD_MOST} bytes of headers".encode() in large


@pytest.mark.parametrize("body", ["Content-Length: 3\r\n\r\nabc", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"])
def test_requests_have_no_body(port, body):
    answer = ask(port, f"GET /healthz HTTP/1.1\r\nHost: a\r\n{body}".encode())
    assert status_of(answer) == 413 and b"has no body" in answer
    answer = ask(port, f"POST /healthz HTTP/1.1\r\nHost: a\r\n{body}".encode())
    assert status_of(answer) == 405 and b"only GET and HEAD" in answer
