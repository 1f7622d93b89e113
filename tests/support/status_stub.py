"""A scheduler's HTTP port with answers from a test: the page's own files, and a status made up by the test."""
import http.server
import json
import pathlib
import threading

PAGE = pathlib.Path(__file__).resolve().parents[2] / "services" / "scheduler" / "page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}


def traffic(network_bytes=0):
    return {"network_bytes_sent": network_bytes, "network_bytes_received": network_bytes, "local_bytes": 0, "copied_bytes": 0,
            "partitions_sealed": 0, "payload_bytes_summed": 0}


def server(number, hostname="cpu", share=0.1, job="train", **more):
    return {"server_id": number, "incarnation": f"{number}", "hostname": hostname, "control_address": "", "endpoints": [], "shards": 1,
            "bandwidth_bps": 10e9, "memory_limit_bytes": 0, "memory_used_bytes": 1000, "colocated": False, "job": None, "node_rank": None,
            "last_seen_s": 0.1, "activity": "9 partitions summed", "draining": False, "speed": 1,
            "shares": [{"job": job, "share": share, "assigned": share}], "traffic_share": 0, "traffic": traffic(), **more}


def node(rank, hostname="gpu", **more):
    return {"node_rank": rank, "connected": True, "hostname": hostname, "control_address": "", "incarnation": f"{rank}",
            "bandwidth_bps": 10e9, "last_seen_s": 0.1, "activity": "1 of 1 trainers connected", "links": "4 tcp",
            "rounds": {"rounds": 0, "seconds": 0, "optimal_s": 0, "recent_s": 0, "recent_optimal_s": 0}, "traffic": traffic(), **more}


def job(name="train", nodes=(), servers=(), **more):
    return {"name": name, "job_id": 1, "generation": 1, "state": "ready", "reason": "", "settings": {"num_nodes": len(nodes)},
            "plan_version": 1, "tensors": 5, "tensor_bytes": 1e9, "uptime_s": 5, "t_opt_s": 0.5, "efficiency": None, "round_s": None,
            "contribution_ratio": 1, "result_ratio": 1, "t_opt_encoded_s": None, "efficiency_encoded": None,
            "first_nonfinite": None, "nodes": list(nodes),
            "shares": [{"server_id": one["server_id"], "share": one["shares"][0]["share"], "assigned": one["shares"][0]["assigned"]}
                       for one in servers], **more}


def status(jobs=(), servers=(), events=(), now=1_700_000_000.0, **more):
    return {"version": "0.1.0", "uptime_s": now - 1_699_990_000, "store": "memory", "servers": list(servers), "jobs": list(jobs),
            "now_unix_s": now, "recommended_servers": 0, "events": list(events), **more}


def event(number, text, kind="joined", about=None):
    return {"number": number, "unix_s": 1_699_999_000.0 + number, "kind": kind, "job": about, "text": text}


def network(groups=(), slow=(), hostname="gpu{}"):
    """`groups`: lists of numbers of hosts."""
    hosts = [{"address": f"10.0.0.{host}", "hostname": hostname.format(host), "groups": [group] if len(groups) > 1 else [],
              "place": None, "members": [f"node {host} of train"]} for group, numbers in enumerate(groups) for host in numbers]
    kinds = [{"pairs": 4, "latency_s": latency_s, "bandwidth_bps": 25e9} for latency_s in (42e-6, 21e-6)[:2 if len(groups) > 1 else 1]]
    return {"source": "measured" if hosts else "unknown", "levels": int(len(groups) > 1), "hosts": hosts, "kinds": kinds, "slow": list(slow),
            "pairs": 8 if hosts else 0}


class StatusStub:
    """`answer`: the answer of /api/status from now on, with `code`; `network`: that of /api/network."""

    def __init__(self, answer, code=200, network=network()):
        self.answer, self.code, self.network = answer, code, network
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/api/network":
                    code, kind, body = 200, "application/json", json.dumps(stub.network).encode()
                elif self.path == "/api/status":
                    code, kind, body = stub.code, "application/json", json.dumps(stub.answer).encode()
                else:
                    path = PAGE / (self.path.lstrip("/") or "index.html")
                    code, kind, body = 200, TYPES[path.suffix], path.read_bytes()
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
