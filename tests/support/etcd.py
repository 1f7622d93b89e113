"""An etcd of one member, for tests of schedulers that share it."""
import pathlib

from tests.support.ports import free_port
from tests.support.processes import Process

BINARY = pathlib.Path("/usr/bin/etcd")


def unavailable():
    """Why there is none on this machine; empty if there is."""
    return "" if BINARY.exists() else f"{BINARY} is not installed (package etcd-server)"


def start(folder, host="127.0.0.1", prefix=()):
    """Returns the process, with its address as `address`. `prefix`: of the command, to run it in a network namespace."""
    address = f"{host}:{free_port()}"
    process = Process("etcd", [
        *prefix, BINARY, f"--data-dir={folder}/etcd", f"--listen-client-urls=http://{address}", f"--advertise-client-urls=http://{address}",
        "--listen-peer-urls=http://127.0.0.1:0", "--unsafe-no-fsync", "--logger=zap"], folder / "etcd.log")
    process.address = address
    return process
