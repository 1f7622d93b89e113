"""The webhook of Kubernetes' admission: hostile questions and clients cost what the bounds say, and others are answered all the same."""
import concurrent.futures
import contextlib
import copy
import json
import pathlib
import re
import signal
import socket
import ssl
import time

import pytest

from tests.support.certificates import Authority, Secret
from tests.support.cluster import PATIENCE, SANITIZED
from tests.support.processes import eventually
from tests.support.webhook import POD, SETTINGS, Webhook, patched, review

# tools/addendctl/webhook_command.h and bounded_json.h
BODY_MOST, THREADS, PATIENCE_S, DEPTH_MOST, VALUES_MOST = 3 << 20, 16, 5, 64, 200_000
MEMORY_LIMIT = 256 << 20  # of the container, in the chart's values


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def certificate(authority):
    return authority.sign("webhook")


@pytest.fixture(scope="module")
def webhook(tmp_path_factory, certificate):
    with Webhook(tmp_path_factory.mktemp("webhook"), certificate) as running:
        yield running


@pytest.fixture(autouse=True)
def still_answers(webhook):
    yield
    response = webhook.ask(review(POD))
    assert response["allowed"] and [c["name"] for c in patched(POD, response)["spec"]["initContainers"]] == ["addend-agent"]


# ---- questions ----

def changed(**request):
    question = review(POD)
    question["request"].update(request)
    return question


def without(key):
    question = review(POD)
    del question["request"][key]
    return question


NO_REVIEWS = {
    "nothing": "", "no JSON": "{", "a word": "null", "a list": "[]", "no text": b"\xff\xfe", "text of two bytes": b'{"\xc3": 1}',
    "another kind": {**review(POD), "kind": "Pod"}, "another version": {**review(POD), "apiVersion": "admission.k8s.io/v1beta1"},
    "no request": {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"},
    "a request of another type": {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": []},
    "no uid": without("uid"), "a number as uid": changed(uid=7), "no namespace": without("namespace"), "no object": without("object"),
    "a deployment": changed(kind={"group": "apps", "version": "v1", "kind": "Deployment"}), "no pod": changed(object={}),
    "deep nesting": "[" * (DEPTH_MOST + 1), "deeper nesting": "[" * 1_000_000, "deep objects": '{"a":' * 600_000,
    "many values": json.dumps([0] * (VALUES_MOST + 1)), "many empty lists": "[" + "[]," * 1_000_000 + "[]]",
}


@pytest.mark.parametrize("name", NO_REVIEWS)
def test_what_is_no_review_of_a_pod_is_refused_in_a_sentence(webhook, name):
    body = NO_REVIEWS[name]
    status, sentence = webhook.request("POST", "/mutate", body if isinstance(body, (str, bytes)) else json.dumps(body))
    assert status == 400 and re.fullmatch(r"the (request|object) is (no|nested) .+\n|the request has more than .+\n", sentence), sentence


def hostile_pods():
    """Pods of which any one part has any other type."""
    paths = [("metadata",), ("metadata", "labels"), ("metadata", "annotations"), ("metadata", "annotations", "addend.io/num-nodes"), ("spec",),
             ("spec", "containers"), ("spec", "containers", 0), ("spec", "containers", 0, "env"), ("spec", "containers", 0, "volumeMounts"),
             ("spec", "containers", 0, "env", 0), ("spec", "containers", 0, "env", 0, "name"), ("spec", "initContainers"), ("spec", "volumes"),
             ("spec", "imagePullSecrets"), ("spec", "securityContext"), ("spec", "securityContext", "fsGroup")]
    whole = copy.deepcopy(POD)
    whole["spec"].update(initContainers=[{"name": "a"}], volumes=[{"name": "a"}], imagePullSecrets=[{"name": "a"}], securityContext={"fsGroup": 1})
    whole["spec"]["containers"][0].update(env=[{"name": "a"}], volumeMounts=[{"mountPath": "/a"}])
    for path in paths:
        for value in (None, True, 7, -1.5, "text", [], {}, [[]], [{}], {"a": []}):
            pod = copy.deepcopy(whole)
            target = pod
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = value
            yield pod


def test_a_pod_with_a_part_of_any_type_is_answered_or_refused(webhook):
    statuses = [webhook.request("POST", "/mutate", json.dumps(review(pod)))[0] for pod in hostile_pods()]
    assert set(statuses) == {200, 400} and webhook.process.returncode is None


@pytest.mark.parametrize("annotations", [
    {"addend.io/model-bytes": "9223372036854775807"}, {"addend.io/model-bytes": "99999999999999999999"}, {"addend.io/model-bytes": ""},
    {"addend.io/local-size": "9223372036854775807"}, {"addend.io/local-size": "-"}, {"addend.io/local-size": " 1"},
])
def test_numbers_beyond_all_bounds_are_refused_in_a_sentence(webhook, annotations):
    pod = copy.deepcopy(POD)
    pod["metadata"]["annotations"].update(annotations)
    response = webhook.ask(review(pod))
    assert not response["allowed"] and response["status"]["message"].startswith("the pod's"), response


def test_a_pod_without_the_label_or_of_another_operation_is_left_alone(webhook):
    pod = copy.deepcopy(POD)
    pod["metadata"]["labels"] = {}
    for question in (review(pod), changed(operation="UPDATE"), changed(operation="CONNECT")):
        assert webhook.ask(question) == {"uid": "7", "allowed": True}


def test_texts_of_a_pod_are_values_of_the_patch_and_nothing_else(webhook):
    pod = copy.deepcopy(POD)
    pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = text = '"},{"op":"remove","path":"/spec"} pod:memory \u2028'
    sidecar, = patched(pod, webhook.ask(review(pod)))["spec"]["initContainers"]
    assert sidecar["env"] == [{"name": "ADDEND_JOB", "value": f"team-a.{text}"}]


# ---- HTTP ----

def raw(webhook, head, body=b""):
    """All bytes of the answer."""
    with webhook.connect() as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        answer = b""
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            while part := connection.recv(1 << 16):
                answer += part
        return answer


@pytest.mark.parametrize("head,status", [
    (f"POST /mutate HTTP/1.1\r\nContent-Length: {BODY_MOST + 1}", 413), ("POST /mutate HTTP/1.1\r\nContent-Length: 99999999999999999999", 413),
    ("POST /mutate HTTP/1.1\r\nContent-Length: -1", 413), ("POST /mutate HTTP/1.1\r\nContent-Length: ", 413),
    ("POST /mutate HTTP/1.1\r\nTransfer-Encoding: chunked", 411), ("POST /mutate HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2", 400),
    ("POST /mutate HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 2", 400), ("PUT /mutate HTTP/1.1\r\nContent-Length: 2", 405),
    ("GET /mutate HTTP/1.1\r\nContent-Length: 2", 413), ("POST /mutate HTTP/1.1\r\n" + "A: b\r\n" * 101 + "B: c", 431),
    ("POST /mutate HTTP/1.1\r\nA: " + "b" * (16 << 10), 431), ("POST /other HTTP/1.1\r\nContent-Length: 0", 404), ("POST /mutate HTTP/1.1", 400),
    ("GET /healthz HTTP/1.1", 200), ("GET /readyz HTTP/1.1", 200),
], ids=lambda value: str(value)[:60])
def test_requests_have_a_size_and_a_form(webhook, head, status):
    assert raw(webhook, head).split(b" ", 2)[1] == str(status).encode()


def test_bytes_after_the_body_are_not_read(webhook):
    body = json.dumps(review(POD)).encode()
    answer = raw(webhook, f"POST /mutate HTTP/1.1\r\nContent-Length: {len(body)}", body + b"GET /healthz HTTP/1.1\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 1 and b'"patch"' in answer


@pytest.mark.parametrize("bytes_sent", [b"GET /healthz HTTP/1.1\r\n\r\n", b"\x00" * 1000, b"\x16\x03\x01\xff\xff" + b"a" * 1000],
                         ids=["HTTP", "zeros", "a record of TLS"])
def test_a_client_that_speaks_no_tls_is_let_go(webhook, bytes_sent):
    with socket.create_connection(("127.0.0.1", webhook.port), timeout=20 * PATIENCE) as client:
        client.sendall(bytes_sent)
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in client.recv(1 << 16)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_old_versions_of_tls_are_refused(webhook):
    tls = webhook.tls()
    tls.minimum_version, tls.maximum_version = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_1
    tls.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", webhook.port), timeout=20 * PATIENCE) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
        tls.wrap_socket(plain, server_hostname="localhost")


# ---- memory, threads and time ----

def peak_memory(process):
    return int(re.search(r"^VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{process.pid}/status").read_text(), re.M)[1]) << 10


# Alone: a question that takes more than its five seconds, on a busy machine, is given up.
@pytest.mark.timing
@pytest.mark.skipif(bool(SANITIZED), reason="a sanitizer's own memory is larger")
def test_the_largest_questions_from_many_clients_fit_into_the_containers_memory(tmp_path, certificate):
    padding = "a" * (BODY_MOST - len(json.dumps(review(POD))) - 100)
    annotated, listed = copy.deepcopy(POD), copy.deepcopy(POD)
    annotated["metadata"]["annotations"]["padding"] = padding
    listed["spec"]["x"] = [[] for _ in range(VALUES_MOST - 100)]
    bodies = [json.dumps(review(annotated)), json.dumps(review(listed)), "[" + "[]," * 1_000_000 + "[]]", '{"a":' * 600_000]
    with Webhook(tmp_path / "webhook", certificate) as webhook:
        with concurrent.futures.ThreadPoolExecutor(2 * THREADS) as clients:
            statuses = list(clients.map(lambda i: webhook.request("POST", "/mutate", bodies[i % len(bodies)])[0], range(8 * THREADS)))
        assert statuses == [200, 200, 400, 400] * (2 * THREADS)
        print(f"{peak_memory(webhook.process) >> 20} MiB")
        assert peak_memory(webhook.process) < MEMORY_LIMIT
        assert len(list(pathlib.Path(f"/proc/{webhook.process.pid}/task").iterdir())) <= THREADS + 4


def begin(webhook, kind):
    """A client that sends only the beginning."""
    if kind in ("hello", "byte"):
        client = socket.create_connection(("127.0.0.1", webhook.port), timeout=20 * PATIENCE)
        client.sendall(b"\x16\x03\x01\x02\x00\x01" if kind == "hello" else b"\x16")
        return client
    client = webhook.connect()
    client.sendall(b"POST /mutate HTTP/1.1\r\n" if kind == "head" else b"POST /mutate HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{")
    return client


def is_over(client):
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        return client.recv(1) == b""
    return True


@pytest.mark.parametrize("kind", ["byte", "hello", "head", "body"])
def test_clients_that_send_only_a_beginning_lose_their_turn(webhook, kind):
    with contextlib.ExitStack() as open_clients:
        began = time.monotonic()
        clients = [open_clients.enter_context(begin(webhook, kind)) for _ in range(THREADS // 2)]
        assert webhook.ask(review(POD))["allowed"], "the other threads answer meanwhile"
        assert all(is_over(client) for client in clients)
        assert time.monotonic() - began < (PATIENCE_S + 5) * PATIENCE


def test_a_client_that_sends_a_byte_at_a_time_has_five_seconds(webhook):
    with webhook.connect() as client:
        began = time.monotonic()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            while time.monotonic() - began < 60 * PATIENCE:
                client.sendall(b"P")
                time.sleep(0.1)
        assert time.monotonic() - began < (PATIENCE_S + 5) * PATIENCE


def test_many_times_as_many_slow_clients_as_threads_keep_others_out_for_a_moment_only(webhook):
    with contextlib.ExitStack() as open_clients:
        began = time.monotonic()
        for _ in range(20 * THREADS):
            open_clients.enter_context(begin(webhook, "byte"))
        assert time.monotonic() - began < 5 * PATIENCE, "clients connect at once, although nobody reads from them"

        def answers():
            with contextlib.suppress(OSError):
                return webhook.ask(review(POD))["allowed"]
            return False
        eventually(answers, 2 * PATIENCE_S * PATIENCE, "the slow clients to be let go")


def test_a_job_of_hundreds_of_pods_is_answered_without_a_refused_connection(webhook):
    with concurrent.futures.ThreadPoolExecutor(100) as clients:
        answers = list(clients.map(lambda _: webhook.ask(review(POD))["allowed"], range(400)))
    assert answers == [True] * 400


# ---- certificates ----

def subject_of(webhook):
    with webhook.connect() as connection:
        return dict(pair for part in connection.getpeercert()["subject"] for pair in part)["commonName"]


def test_a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not(tmp_path, authority):
    secret = Secret(tmp_path / "secret")
    secret.show(authority.sign("first"))
    with Webhook(tmp_path / "webhook", secret.folder) as webhook:
        assert subject_of(webhook) == "first"
        secret.show(authority.sign("second"))
        eventually(lambda: subject_of(webhook) == "second", 10 * PATIENCE, "the renewed certificate")
        broken = authority.sign("broken")
        (broken / "tls.key").write_text((authority.folder / "first" / "tls.key").read_text())
        secret.show(broken)
        said = "is not the key of the certificate"
        eventually(lambda: subject_of(webhook) == "second" and said in webhook.process.log.read_text(), 10 * PATIENCE, "the warning")
        secret.show(authority.sign("third"))
        eventually(lambda: subject_of(webhook) == "third", 10 * PATIENCE, "the next certificate")
        assert webhook.process.log.read_text().count(said) == 1
        assert webhook.ask(review(POD))["allowed"]


# ---- start and end ----

@pytest.mark.parametrize("change,sentence", [
    ({"rules": [{"message": "m", "value": {"annotation": "a", "pattern": "("}}]}, "( is no regular expression of RE2"),
    ({"rules": None}, "rules must be a list"), ({"rules": [{}]}, "message must be a text"), ({"failurePolicy": "Maybe"}, "failurePolicy must be Fail or Ignore"),
    ({"modelBytes": "-1"}, "modelBytes must be a number up to"), ({"sidecar": {"name": "a"}}, "sidecar must be a container"),
    ({"volumes": [{}]}, "volumes must be a list of objects with a name"), ({"jobLabels": [1]}, "jobLabels must be a list of texts"),
])
def test_wrong_settings_end_the_start_with_a_sentence(tmp_path, certificate, change, sentence):
    with pytest.raises(AssertionError, match=re.escape(f"the settings are wrong: {sentence}")):
        Webhook(tmp_path, certificate, {**SETTINGS, **change})


def test_it_answers_for_a_while_after_the_signal_to_end(tmp_path, certificate):
    with Webhook(tmp_path, certificate, linger="2s") as webhook:
        webhook.process.signal(signal.SIGTERM)
        eventually(lambda: "the cluster asks other pods" in webhook.process.log.read_text(), 10 * PATIENCE, "the signal to be taken")
        assert webhook.ask(review(POD))["allowed"]
        assert webhook.process.wait(20 * PATIENCE) == 0
