"""The scheduler's status page in a real browser: its contents during normal operation and failures, and its accessibility."""
import json
import re
import signal
import urllib.error
import urllib.request

import pytest

from tests.support import status_stub as stub
from tests.support.browser import Browser
from tests.support.cluster import Cluster, PATIENCE, ROOT
from tests.support.ports import free_port
from tests.support.processes import eventually
from tests.support.rounds import finish, running

PICTURES = ROOT / "build" / "test-results" / "status-page"
LEASE = ["--lease=3s"]
in_a_browser = pytest.mark.full


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("page")) as one:
        yield one


def get(process, path):
    """(status, headers, body) of a service's HTTP port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{process.ports['http']}{path}", timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def metric(process, name):
    """{labels: value} of a metric family."""
    lines = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", get(process, "/metrics")[2].decode(), re.M)
    return {labels: float(value) for labels, value in lines}


def name_of(server):
    """The server's name, with the scheduler's number for it."""
    return "server " + re.search(r"summation server (\d+) serves", server.text())[1]


# ---- without a browser ----
def test_api_status_is_what_addendctl_prints(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=1) as cluster:
        eventually(lambda: all(node["connected"] for node in cluster.addendctl("status")["jobs"][0]["nodes"]), 20, "both nodes' connections")
        code, headers, body = get(cluster.scheduler, "/api/status")
        answer, printed = json.loads(body), cluster.addendctl("status")
        assert code == 200 and headers["Content-Type"] == "application/json"
        for document in (answer, printed):  # removes values that change between the two calls
            for moving in ("now_unix_s", "uptime_s", "events"):
                del document[moving]
            for member in document["servers"] + [node for job in document["jobs"] for node in job["nodes"]]:
                for moving in ("last_seen_s", "traffic", "activity", "links"):
                    member.pop(moving, None)
            for job in document["jobs"]:
                del job["uptime_s"], job["reason"]
        assert answer == printed


def test_the_page_is_that_of_this_source_and_may_run_only_its_own_scripts(tmp_path):
    with Cluster(tmp_path) as cluster:
        for path in (ROOT / "services/scheduler/page").iterdir():
            code, headers, body = get(cluster.scheduler, "/" if path.name == "index.html" else f"/{path.name}")
            assert code == 200 and body == path.read_bytes(), path.name
            assert "script-src 'self'" in headers["Content-Security-Policy"]


def test_events_and_metrics_tell_of_a_lost_server_and_its_plan(tmp_path):
    with Cluster(tmp_path, nodes=2, cpu_servers=2, scheduler_flags=LEASE, agent_flags=["--bandwidth=1Gbps"]) as cluster:
        ranks = running(cluster)
        cluster.servers[0].kill()

        def lost():
            return [event for event in cluster.addendctl("status")["events"] if event["kind"] == "lost"]
        eventually(lost, 10 * PATIENCE, "the event")
        assert f"{name_of(cluster.servers[0])} (on " in lost()[0]["text"] and "was lost" in lost()[0]["text"]
        planned = [event["text"] for event in cluster.addendctl("status")["events"] if event["kind"] == "planned"]
        # Either the scheduler or a node that cannot reach the server notices first.
        assert any("new owners, because " in text and name_of(cluster.servers[0]) in text for text in planned), planned

        def exported():
            return metric(cluster.scheduler, "addend_members_lost_total").get('role="cpu_server"') == 1
        eventually(exported, 5 * PATIENCE, "the metric")
        assert metric(cluster.scheduler, "addend_plan_changes_total")['reason="loss"'] == 1
        assert metric(cluster.scheduler, "addend_job_optimal_seconds")['job_name="job"'] > 0
        assert metric(cluster.scheduler, "addend_job_nodes")['job_name="job",state="connected"'] == 2
        assert metric(cluster.scheduler, "addend_scheduler_leader") == {"": 1}
        assert len(metric(cluster.scheduler, "addend_server_speed_ratio")) == 1
        finish(ranks)
        for agent in cluster.agents.values():
            agent.stop()
        eventually(lambda: not metric(cluster.scheduler, "addend_job_nodes"), 5 * PATIENCE, "the job's metrics to vanish")


def test_a_standby_scheduler_names_the_leader(tmp_path):
    def http_port(process):
        """Read from its log, since it writes its port file only as the leader."""
        found = re.search(r"serves HTTP on port (\d+)", process.text())
        return int(found[1]) if found else None
    with Cluster(tmp_path, schedulers=2, scheduler_flags=LEASE) as cluster:
        standby = cluster.schedulers[1 - cluster.leader()]
        standby.ports = {"http": eventually(lambda: http_port(standby), 10 * PATIENCE, "its HTTP port")}

        def leader():
            code, _, body = get(standby, "/api/status")
            answer = json.loads(body)
            assert code == 503 and answer["standby"] is True
            return answer["leader"]
        assert f"process {cluster.schedulers[cluster.leader()].pid}" in eventually(leader, 10 * PATIENCE, "the leader's name")
        assert get(standby, "/")[0] == 200
        assert metric(standby, "addend_scheduler_leader") == {"": 0}


# ---- in a browser ----
@in_a_browser
def test_a_running_job_a_killed_server_and_a_scheduler_that_is_away(tmp_path, browser):
    flags = ["--bandwidth=1Gbps"]
    at = f"--http=127.0.0.1:{free_port()}"  # the browser finds a restarted scheduler there; the last flag wins
    with Cluster(tmp_path, nodes=3, cpu_servers=2, scheduler_flags=[*LEASE, at], agent_flags=flags, summation_flags=flags,
                 store=f"sqlite:{tmp_path}/scheduler.db") as cluster:
        ranks = running(cluster)
        page = browser.open(f"http://127.0.0.1:{cluster.scheduler.ports['http']}/")
        page.shows("● ready", "#jobs")
        page.eventually("/\\d (K|M|G)?bit\\/s/.test(document.querySelector('#nodes').innerText)")
        assert page.text("#connection") == "Live"
        assert "3 of 3" in page.text("#jobs")
        assert "at best" in page.text("#plan-facts")
        assert page.evaluate("document.querySelectorAll('#picture .link').length") >= 6, "each node with each server"
        page.shows("has joined job 'job'", "#events")
        page.screenshot(PICTURES / "light.png")

        cluster.servers[0].kill()
        page.shows("✕ lost", "#events")
        page.eventually("document.querySelector('#picture .gone .cross') !== null")
        killed = name_of(cluster.servers[0])
        assert killed in page.evaluate("document.querySelector('#picture .gone').textContent")
        assert re.search(f"{killed} lost \\d+ s ago", page.evaluate("document.querySelector('#picture').getAttribute('aria-label')"))
        assert killed not in page.text("#servers")
        page.screenshot(PICTURES / "killed.png")
        for name, width, dark in (("dark", 1280, True), ("phone", 360, False), ("phone-dark", 360, True)):
            page.resize(width, 800, dark)
            page.eventually("document.querySelector('#picture').viewBox.baseVal.width <= innerWidth")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"no sideways scrolling of the page ({name})"
            page.screenshot(PICTURES / f"{name}.png")
        assert page.errors == []

        page.resize(1280, 900)
        cluster.scheduler.signal(signal.SIGSTOP)
        page.shows("The scheduler has not answered since", "#notice", timeout=20)
        assert "Not answering" in page.text("#connection") and "no answer" in page.evaluate("document.title")
        assert "● ready" in page.text("#jobs"), "the last picture stays"
        page.resize(700, 900)
        page.eventually("document.querySelector('#picture').viewBox.baseVal.width < 700")
        assert "Not answering" in page.text("#connection"), "another width is no answer"
        page.resize(1280, 900)
        page.screenshot(PICTURES / "away.png")
        cluster.scheduler.signal(signal.SIGCONT)
        page.eventually("document.querySelector('#connection').dataset.state === 'live'", 20)
        assert page.text("#notice") == ""

        cluster.scheduler.kill()
        page.shows("Rounds that are running go on without it", "#notice", timeout=20)
        cluster.start_scheduler()
        page.eventually("document.querySelector('#connection').dataset.state === 'live'", 20)
        page.shows("● ready", "#jobs")
        finish(ranks)


@in_a_browser
def test_groups_of_hosts_and_slow_links_are_drawn(browser):
    slow = {"from": "10.0.0.2", "to": None, "latency_s": 21e-6, "bandwidth_bps": 1e9, "typical_latency_s": 21e-6, "typical_bandwidth_bps": 25e9}
    network = stub.network([[1, 3], [2, 4]], [slow])
    with stub.StatusStub(stub.status([stub.job(nodes=[stub.node(0)])]), network=network) as scheduler:
        page = browser.open(scheduler.url)
        page.shows("4 hosts in 2 groups (as measured); round trip in a group 21 µs, between groups 42 µs", "#network-facts")
        assert page.evaluate("document.querySelectorAll('#network-picture .frame').length") == 2
        assert page.evaluate("[...document.querySelectorAll('#network-picture .machine text')].map((text) => text.textContent)") == [
            "gpu1", "gpu3", "▲ gpu2", "gpu4"]
        assert "gpu2" in page.text("#slow-links") and "most hosts" in page.text("#slow-links")
        page.screenshot(PICTURES / "network.png")
        page.resize(360, 800)
        page.eventually("document.querySelector('#network-picture').viewBox.baseVal.width <= innerWidth")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling of the page"
        page.resize(1280, 900)
        assert page.errors == []


@in_a_browser
def test_without_a_network_there_is_no_picture_of_it(browser):
    with stub.StatusStub(stub.status([stub.job(nodes=[stub.node(0)])])) as scheduler:
        page = browser.open(scheduler.url)
        page.shows("● ready", "#jobs")
        assert page.evaluate("document.querySelector('#network').hidden")


@in_a_browser
def test_names_of_members_are_shown_as_text(browser):
    hostile = "<img src=x onerror=alert(1)>"
    servers = [stub.server(1, f"{hostile}\u202eevil\n")]
    job = stub.job(hostile, [stub.node(0, hostile, activity=hostile, links=hostile)], servers, state="failed", reason=hostile,
                   first_nonfinite=hostile)
    with stub.StatusStub(stub.status([job], servers, [stub.event(1, hostile, hostile, hostile)], version=hostile),
                         network=stub.network([[1], [2]], hostname=hostile)) as scheduler:
        page = browser.open(scheduler.url)
        page.shows(hostile, "#jobs")
        page.shows("2 hosts in 2 groups", "#network-facts")
        for place in ("#network-picture", "#nodes", "#servers", "#events", "#summary", "#plan-job"):
            assert hostile in page.evaluate(f"document.querySelector('{place}').textContent"), place
        assert page.evaluate("document.querySelectorAll('img').length") == 0
        assert "\u202e" not in page.evaluate("document.body.textContent"), "text that turns its neighbours around"
        assert page.errors == []


@in_a_browser
def test_efficiency_is_shown_against_the_optimum_and_rates_are_those_of_the_counters(browser):
    def at(seconds):
        servers = [stub.server(9, share=0.4, traffic=stub.traffic(int(5e8 * seconds)), last_seen_s=0)]
        nodes = [stub.node(rank, traffic=stub.traffic(int(2.5e8 * seconds)), last_seen_s=0) for rank in range(2)]
        return stub.status([stub.job(nodes=nodes, servers=servers, efficiency=0.8, round_s=0.25)], servers, now=1_700_000_000.0 + seconds)
    with stub.StatusStub(at(0)) as scheduler:
        page = browser.open(scheduler.url)
        page.shows("80 %", "#jobs")
        assert "250 ms" in page.text("#jobs") and "200 ms" in page.text("#jobs")
        assert "runs at 80 % of the optimum" in page.text("#plan-facts")
        assert "bit/s" not in page.text("#servers").replace("10.0 Gbit/s", ""), "one sample is no rate"
        scheduler.answer = at(4)
        page.shows("4.00 Gbit/s", "#servers")
        page.shows("2.00 Gbit/s", "#nodes")
        # A restarted server's counters begin at 0.
        scheduler.answer = at(8)
        scheduler.answer["servers"][0].update(incarnation="new", traffic=stub.traffic(0))
        page.eventually("!document.querySelector('#servers').innerText.includes('4.00 Gbit/s')")
        assert "-" not in page.text("#servers")


@in_a_browser
def test_encoded_payloads_have_an_optimum_of_their_own(browser):
    def with_(**more):
        return stub.status([stub.job(nodes=[stub.node(0), stub.node(1)], efficiency=1, round_s=0.4, **more)])
    with stub.StatusStub(with_(t_opt_encoded_s=0.5)) as scheduler:
        page = browser.open(scheduler.url)
        page.shows("100 %", "#jobs")
        assert "contributions take" not in page.text("#plan-facts"), "payloads are raw"
        scheduler.answer = with_(t_opt_encoded_s=0.375, efficiency_encoded=0.94, contribution_ratio=0.5)
        page.shows("contributions take 50 %, results 100 % of their bytes: 375 ms at best; 94 % of that optimum", "#plan-facts")


@in_a_browser
def test_members_that_left_or_were_lost_are_crossed_out_for_a_minute(browser):
    servers = [stub.server(1), stub.server(2)]
    nodes = [stub.node(0), stub.node(1), stub.node(2)]
    now = 1_700_000_000.0
    with stub.StatusStub(stub.status([stub.job(nodes=nodes, servers=servers)], servers, now=now)) as scheduler:
        page = browser.open(scheduler.url)
        page.shows("server 2", "#servers")
        left = [stub.event(1, "server 2 (on cpu) has left", "left")]
        scheduler.answer = stub.status([stub.job(nodes=nodes[:2], servers=servers[:1])], servers[:1], left, now=now + 2)
        page.eventually("document.querySelectorAll('#picture .gone').length === 2")
        gone = page.evaluate("document.querySelector('#picture').textContent")
        assert "✕ left 0 s ago" in gone and "✕ lost 0 s ago" in gone
        scheduler.answer = {**scheduler.answer, "now_unix_s": now + 59, "uptime_s": scheduler.answer["uptime_s"] + 57}
        page.eventually("document.querySelector('#picture').textContent.includes('lost 57 s ago')")
        scheduler.answer = {**scheduler.answer, "now_unix_s": now + 64, "uptime_s": scheduler.answer["uptime_s"] + 5}
        page.eventually("document.querySelectorAll('#picture .gone').length === 0")


@in_a_browser
def test_large_clusters_fit_and_show_what_needs_attention(browser):
    servers = [stub.server(1000 + i, f"cpu{i}", 0.01, last_seen_s=9 if i == 250 else 0.1) for i in range(300)]
    nodes = [stub.node(i, f"gpu{i}", connected=i != 280) for i in range(300)]
    with stub.StatusStub(stub.status([stub.job(nodes=nodes, servers=servers)], servers)) as scheduler:
        page = browser.open(scheduler.url)
        page.shows("100 more: addendctl nodes shows all", "#nodes")
        for place, text in (("#nodes", "node 280"), ("#servers", "server 1250"), ("#picture", "node 280"), ("#picture", "server 1250"),
                            ("#picture", "289 further nodes")):
            assert text in page.evaluate(f"document.querySelector('{place}').textContent"), (place, text)
        page.screenshot(PICTURES / "large.png")
        assert page.errors == []


@in_a_browser
def test_a_standby_and_an_empty_cluster_say_so(browser):
    standby = {"version": "0.1.0", "standby": True, "leader": "gpu7 (process 12)", "now_unix_s": 1.7e9}
    with stub.StatusStub(standby, code=503) as scheduler:
        page = browser.open(scheduler.url)
        page.shows("gpu7 (process 12) leads", "#notice")
        assert page.evaluate("document.querySelector('#connection').dataset.state") == "standby"
        scheduler.answer, scheduler.code = stub.status(), 200
        page.shows("No jobs. One begins with its first agent.")
        page.shows("No agent or summation server has registered yet.")
        assert page.text("#notice") == ""


@in_a_browser
def test_keyboards_and_screen_readers_reach_everything(browser):
    servers = [stub.server(1)]
    jobs = [stub.job(nodes=[stub.node(0)], servers=servers), stub.job("other", state="forming", reason="waiting for node 0", job_id=2)]
    events = [stub.event(1, "calm"), stub.event(2, "server 3 was lost", "lost")]
    with stub.StatusStub(stub.status(jobs, servers, events)) as scheduler:
        page = browser.open(scheduler.url)
        page.shows("calm", "#events")
        page.eventually("document.querySelector('#events').getAttribute('aria-live') === 'polite'")
        accessible = page.accessible()
        names = {(role, name) for role, name in accessible}
        for role in ("banner", "main", "contentinfo"):
            assert role in {one for one, _ in accessible}, role
        for expected in [("heading", "Addend"), ("heading", "Jobs"), ("heading", "Plan"), ("heading", "Machines"), ("heading", "Events"),
                         ("region", "Jobs"), ("region", "Events"), ("table", "GPU machines"), ("table", "CPU servers"), ("list", "Events"),
                         ("checkbox", "only problems"), ("columnheader", "Efficiency")]:
            assert expected in names, expected
        assert any(role == "rowheader" and "train" in name for role, name in accessible)
        assert any(role == "image" and name.startswith("Plan of job train: 1 GPU machine sums") for role, name in accessible)
        assert any(role == "combobox" and "of job" in name for role, name in accessible)
        assert page.evaluate("document.querySelector('#connection').getAttribute('role')") == "status"

        order = []
        for _ in range(7):
            page.press_tab()
            order.append(page.evaluate("document.activeElement.id || document.activeElement.className || document.activeElement.textContent"))
        assert order == ["skip", "plan-job", "problems", "events", "/api/status", "/api/network", "/metrics"]
        page.evaluate("document.querySelector('#problems').click()")
        assert "calm" not in page.text("#events") and "was lost" in page.text("#events")
        # Unchanged events keep their elements, so that they are not read out again, and a selection stays.
        page.evaluate("window.kept = document.querySelector('#events li'), window.row = document.querySelector('#jobs tbody tr')")
        scheduler.answer = stub.status(jobs, servers, [*events, stub.event(3, "server 4 was lost", "lost")])
        page.shows("server 4 was lost", "#events")
        assert page.evaluate("document.querySelectorAll('#events li')[1] === window.kept && document.querySelector('#jobs tbody tr') === window.row")
