"""An etcd with a single member, for tests of schedulers that share it."""
import base64
import collections
import json
import pathlib
import urllib.request

from tests.support.ports import free_port
from tests.support.processes import Process

BINARY = pathlib.Path("/usr/bin/etcd")


def unavailable():
    """The reason why etcd cannot run on this machine; empty if it can."""
    return "" if BINARY.exists() else f"{BINARY} is not installed (package etcd-server)"


def start(folder, host="127.0.0.1", prefix=()):
    """Returns the process, with `address` set. `prefix`: of the command, to run it in a network namespace."""
    address = f"{host}:{free_port()}"
    process = Process("etcd", [
        *prefix, BINARY, f"--data-dir={folder}/etcd", f"--listen-client-urls=http://{address}", f"--advertise-client-urls=http://{address}",
        "--listen-peer-urls=http://127.0.0.1:0", "--unsafe-no-fsync", "--logger=zap"], folder / "etcd.log")
    process.address = address
    return process


def value_bytes(process, prefix):
    """{key: bytes of its value} of the schedulers' keys that start with `prefix`; the parts of a value (KEY#PART) are added up."""
    def encoded(key):
        return base64.b64encode(key).decode()
    everything = {"key": encoded(b"\0"), "range_end": encoded(b"\0")}
    request = urllib.request.Request(f"http://{process.address}/v3/kv/range", json.dumps(everything).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        entries = json.load(answer).get("kvs", [])
    sizes = collections.Counter()
    for entry in entries:
        key = base64.b64decode(entry["key"]).decode(errors="replace")
        if prefix in key:
            sizes[key.split("#")[0]] += len(base64.b64decode(entry.get("value", "")))
    return sizes
