"""An etcd of one member, for tests of schedulers that share it."""
import pathlib
import socket

from tests.support.processes import Process

BINARY = pathlib.Path("/usr/bin/etcd")


def unavailable():
    """Why there is none on this machine; empty if there is."""
    return "" if BINARY.exists() else f"{BINARY} is not installed (package etcd-server)"


def free_port():
    """A port that nobody listens on just now, for programs that have to be told one before they start."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(folder, host="127.0.0.1", prefix=()):
    """Returns the process, with its address as `address`. `prefix`: of the command, to run it in a network namespace."""
    address = f"{host}:{free_port()}"
    process = Process("etcd", [
        *prefix, BINARY, f"--data-dir={folder}/etcd", f"--listen-client-urls=http://{address}", f"--advertise-client-urls=http://{address}",
        "--listen-peer-urls=http://127.0.0.1:0", "--unsafe-no-fsync", "--logger=zap"], folder / "etcd.log")
    process.address = address
    return process
