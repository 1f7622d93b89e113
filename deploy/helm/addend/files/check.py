"""A job of two nodes on an installed Addend, whose results are compared with NumPy bit by bit.

    check.py --scheduler=HOST:PORT SOCKET SOCKET    one socket for each node's agent, in the order of the nodes

`helm test` runs it beside two agents. It ends with status 0 if everything agrees, else with one sentence per fault.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time

ELEMENTS = (1, 1023, 65536, 1000003)  # one, odd, a page's multiple, and several partitions
DTYPES = ("float32", "float64", "int32", "float16")
ROUNDS = 3
HEARTBEATS_S = 10  # by then the scheduler has heard from every server


def contribution(numpy, rank, dtype, elements, number):
    """The values that a rank pushes; every process can compute those of every rank."""
    generator = numpy.random.Generator(numpy.random.PCG64([rank, elements, number]))
    if dtype.startswith("int"):
        return generator.integers(-1000, 1000, elements, dtype=dtype)
    return generator.standard_normal(elements).astype(dtype)


def expected(numpy, ranks, dtype, elements, number):
    """Addend's sum: in ascending order of the nodes, halves in float32 and rounded once."""
    wide = "float32" if dtype == "float16" else dtype
    total = contribution(numpy, 0, dtype, elements, number).astype(wide)
    for rank in range(1, ranks):
        total = total + contribution(numpy, rank, dtype, elements, number).astype(wide)
    return total.astype(dtype)


def train(rank, ranks, path):
    """Runs a trainer: pushes, pulls and compares; writes the checksum of all results to a file."""
    import numpy
    import addend
    addend.init()
    checksum = hashlib.sha256()
    for dtype in DTYPES:
        for elements in ELEMENTS:
            for number in range(ROUNDS):
                mine = contribution(numpy, rank, dtype, elements, number)
                result = addend.push_pull(mine, f"check.{dtype}.{elements}", op=addend.Sum)
                wanted = expected(numpy, ranks, dtype, elements, number)
                if result.tobytes() != wanted.tobytes():
                    different = numpy.flatnonzero(result.view(f"V{result.itemsize}") != wanted.view(f"V{wanted.itemsize}"))
                    sys.exit(f"rank {rank}: {different.size} of {elements} elements of {dtype} differ from NumPy's sum in "
                             f"round {number}; the first is element {different[0]}: {result[different[0]]!r}, not "
                             f"{wanted[different[0]]!r}")
                checksum.update(result.tobytes())
    with open(path, "w", encoding="ascii") as file:
        file.write(checksum.hexdigest())
    addend.shutdown()


def start_trainer(rank, sockets, folder):
    environment = dict(
        os.environ, RANK=str(rank), WORLD_SIZE=str(len(sockets)), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        GROUP_RANK=str(rank), ADDEND_SOCKET=sockets[rank], OMP_NUM_THREADS="1")
    path = os.path.join(folder, f"checksum.{rank}")
    process = subprocess.Popen([sys.executable, __file__, "--trainer", str(rank), "--checksum", path, *sockets], env=environment)
    return process, path


def run_job(sockets, timeout):
    """Waits for all trainers; returns (their common checksum or None, the faults)."""
    faults = []
    with tempfile.TemporaryDirectory(dir=os.path.dirname(sockets[0])) as folder:  # nothing else is writable in the pod
        trainers = [start_trainer(rank, sockets, folder) for rank in range(len(sockets))]
        try:
            for rank, (process, _) in enumerate(trainers):
                status = process.wait(timeout)
                if status:
                    faults.append(f"The trainer of node {rank} ended with status {status}; see its lines above.")
        except subprocess.TimeoutExpired:
            faults.append(f"The job did not end within {timeout:g} s: `addendctl why` names the ranks that it waits for.")
        finally:
            for process, _ in trainers:
                process.kill()
                process.wait()
        if faults:
            return None, faults
        checksums = {open(path, encoding="ascii").read() for _, path in trainers}
    if len(checksums) != 1:
        return None, [f"The nodes have different results: {sorted(checksums)}."]
    return checksums.pop(), []


def addendctl(arguments, scheduler, timeout):
    command = ["addendctl", *arguments, f"--scheduler={scheduler}"]
    return subprocess.run(command, stdout=subprocess.PIPE, timeout=timeout, check=False)


def summed_by_cpu_servers(scheduler, timeout):
    """{server: bytes summed} of the CPU servers that the scheduler knows."""
    answer = addendctl(["status", "--json"], scheduler, timeout)
    if answer.returncode:
        sys.exit(f"addendctl status ended with status {answer.returncode}: is {scheduler} the scheduler's address?")
    servers = json.loads(answer.stdout)["servers"]
    return {server["server_id"]: (server["traffic"] or {}).get("payload_bytes_summed", 0)
            for server in servers if not server["colocated"]}


def summed_since(before, scheduler, timeout):
    """Bytes that the installed servers have summed since `before`; None if there are servers, and they have summed nothing."""
    deadline = time.monotonic() + HEARTBEATS_S
    while True:
        now = summed_by_cpu_servers(scheduler, timeout)
        present = before.keys() & now.keys()
        summed = sum(now[server] - before[server] for server in present)
        if summed or not present:
            return summed
        if time.monotonic() > deadline:
            return None
        time.sleep(0.2)


def check(options):
    doctor = addendctl(["doctor"], options.scheduler, options.timeout)
    print(doctor.stdout.decode(errors="replace"), end="", flush=True)
    faults = [f"addendctl doctor ended with status {doctor.returncode}."] if doctor.returncode else []
    before = summed_by_cpu_servers(options.scheduler, options.timeout)
    checksum, wrong = run_job(options.sockets, options.timeout)
    faults += wrong
    if checksum is not None:
        summed = summed_since(before, options.scheduler, options.timeout)
        if summed is None:
            faults.append(f"{len(before)} CPU servers summed no byte of the job: see `addendctl status`.")
        print(f"{len(options.sockets)} nodes, {len(DTYPES) * len(ELEMENTS) * ROUNDS} rounds, bit for bit as NumPy sums; "
              f"{len(before)} CPU servers summed {summed or 0} bytes of them; sha256 {checksum}")
    for fault in faults:
        print(f"check: {fault}", file=sys.stderr)
    return 1 if faults else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", default=os.environ.get("ADDEND_SCHEDULER"), help="HOST:PORT, several with commas")
    parser.add_argument("--timeout", type=float, default=120, help="seconds that a part may take")
    parser.add_argument("--trainer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--checksum", help=argparse.SUPPRESS)
    parser.add_argument("sockets", nargs="+", help="of the nodes' agents")
    options = parser.parse_args()
    if options.trainer is not None:
        train(options.trainer, len(options.sockets), options.checksum)
        return 0
    if not options.scheduler:
        parser.error("--scheduler=HOST:PORT is missing")
    return check(options)


if __name__ == "__main__":
    sys.exit(main())
