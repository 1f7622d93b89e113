"""addend run: Addend's services and the ranks of a training script, in one command: on this machine, or
as tasks of a Slurm job on several (_slurm.py).
"""

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import NamedTuple

from . import _core, _horovod_variables, _slurm
from ._processes import Child, Relay, die_with_parent, end_all
from ._services import Layout, Services, ServicesError, status_of

_USAGE = 64
_BUG = 70
_NOT_FOUND = 127
_KILLED_AFTER_S = 5

_HELP = """\
addend %s

  addend run [options] -- COMMAND...   starts Addend and the ranks of a training script, on this machine
                                       or under srun on the nodes of a Slurm job
  addend serve                         under srun, a summation server for the job's addend run
  addend --version
  addend run --help                    lists the options
"""


class _Ended(BaseException):
    """Raised by Ctrl-C or another signal that asks the command to end."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise ServicesError("%s; see addend run --help" % message, _USAGE)


def _count(least):
    def parse(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError("%r is not a number of at least %d" % (text, least))
        return int(text)

    return parse


def _parse(arguments):
    parser = _Parser(
        prog="addend run",
        usage="addend run [options] -- COMMAND...",
        description="Starts a scheduler, summation servers and an agent per node on this machine (under srun: an "
        "agent on each node of the step, and the scheduler on the first), then "
        "COMMAND once per rank with the variables that torchrun sets, and ADDEND_SOCKET. COMMAND may "
        "begin with a .py file. Ends with the status of the first rank that fails, or 0.",
        epilog="Further flags of the services are read from the environment: --on-node-loss of the agent is "
        "ADDEND_ON_NODE_LOSS. ADDEND_BIN_DIR is the folder of the binaries.",
    )
    parser.add_argument("-np", "--num-proc", type=_count(1), metavar="RANKS", help="all ranks, as horovodrun has it")
    parser.add_argument("-H", "--hosts", metavar="HOSTS", help=argparse.SUPPRESS)
    parser.add_argument("-n", "--ranks", "--nproc-per-node", "--nproc_per_node", type=_count(1), metavar="RANKS",
                        help="ranks per node, and under srun per task (default: 1)")
    parser.add_argument("--nodes", type=_count(1), default=1, metavar="N",
                        help="nodes to emulate, each with an agent of its own (default: 1)")
    parser.add_argument("--rendezvous", metavar="FOLDER",
                        help="under srun: a folder that all nodes see (default: the job's working directory)")
    parser.add_argument("--servers", type=_count(0), default=0, metavar="K",
                        help="summation servers beside those in the agents (default: 0)")
    parser.add_argument("--partition-bytes", metavar="BYTES", help="of the agents (default: auto)")
    parser.add_argument("--job", default="run", help="name of the job (default: run)")
    parser.add_argument("--grace", type=float, default=10, metavar="SECONDS",
                        help="how long the other ranks may go on when one has failed (default: 10)")
    parser.add_argument("--log-dir", metavar="FOLDER",
                        help="keeps the services' logs there (default: they are kept only if a rank fails)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("there is no command to run: it comes after --")
    _count_ranks(parser, options)
    if options.command[0].endswith(".py"):
        options.command.insert(0, sys.executable)
    return options


def _count_ranks(parser, options):
    """Sets options.ranks, of each node, from what horovodrun's users say too."""
    if options.hosts is not None:
        hosts = [host.partition(":")[0] for host in options.hosts.split(",")]
        if any(host not in ("localhost", "127.0.0.1") for host in hosts):
            parser.error(
                "-H %s names other machines, and addend run starts ranks on this machine alone: on several use "
                "`srun addend run`, or torchrun with an agent on each (docs/pytorch.md, Launching)" % options.hosts
            )
    if options.num_proc is None:
        options.ranks = options.ranks or 1
    elif options.ranks is not None or options.num_proc % options.nodes:
        parser.error("-np is the number of all ranks, a multiple of --nodes, and goes without -n")
    else:
        options.ranks = options.num_proc // options.nodes


# ---- the ranks ----


class _Place(NamedTuple):
    """A rank's place, and where the first rank is."""

    rank: int
    local_size: int
    nodes: int
    master: str
    port: int


def _places(options, step, services, port):
    """The places of the ranks that this process starts."""
    if step is None:
        ranks, local_size, nodes = range(options.nodes * options.ranks), options.ranks, options.nodes
        master = ("127.0.0.1", port)
    else:
        local_size, nodes = step.tasks * options.ranks, step.nodes
        first = step.node * local_size + step.task * options.ranks
        ranks = range(first, first + options.ranks)
        master = (services.facts["master_addr"], services.facts["master_port"])
    return [_Place(rank, local_size, nodes, *master) for rank in ranks]


def _rank_environment(options, services, place):
    node, local_rank = divmod(place.rank, place.local_size)
    size = place.nodes * place.local_size
    env = dict(os.environ)
    if options.nodes * place.local_size > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # the ranks share the machine, as with torchrun
    env.setdefault("USE_LIBUV", "0")  # Debian 13's PyTorch has no libuv, and asks for it by default
    env.setdefault("PYTHONUNBUFFERED", "1")  # a rank's output shows at once
    env.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(size),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(place.local_size),
        GROUP_RANK=str(node),
        GROUP_WORLD_SIZE=str(place.nodes),
        MASTER_ADDR=place.master,
        MASTER_PORT=str(place.port),
        ADDEND_SOCKET=services.socket(node),
        ADDEND_JOB=options.job,
        ADDEND_SCHEDULER=services.scheduler,
        # For scripts that ask horovodrun's.
        HOROVOD_RANK=str(place.rank),
        HOROVOD_SIZE=str(size),
        HOROVOD_LOCAL_RANK=str(local_rank),
        HOROVOD_LOCAL_SIZE=str(place.local_size),
        HOROVOD_CROSS_RANK=str(node),
        HOROVOD_CROSS_SIZE=str(place.nodes),
    )
    return env


def _start_ranks(options, services, places, relay, ranks):
    for place in places:
        name = "rank %d" % place.rank
        try:
            child = Child(name, options.command, _rank_environment(options, services, place))
        except OSError as error:
            raise ServicesError(
                "%s cannot be started: %s" % (options.command[0], error.strerror), _NOT_FOUND
            ) from None
        ranks.append(child)
        relay.add(child.stdout, b"[%d] " % place.rank, sys.stdout.buffer)
        relay.add(child.stderr, b"[%d] " % place.rank, sys.stderr.buffer)


def _attend(ranks, relay, grace_s):
    """Waits until all ranks have ended, or a rank has failed and the grace time is over; returns
    the exit status.
    """
    failed, deadline = None, None
    while any([rank.poll() is None for rank in ranks]):  # a list, so that every rank is polled
        relay.pump(0.05)
        if failed is None:
            failed = next((rank for rank in ranks if rank.status), None)
            if failed is not None:
                deadline = time.monotonic() + grace_s
        elif time.monotonic() > deadline:
            break
    failed = failed or next((rank for rank in ranks if rank.status), None)
    relay.drain()
    if failed is None:
        return 0
    _say("%s ended with status %d" % (failed.name, status_of(failed)))
    return status_of(failed)


def _say(sentence):
    print("addend run: " + sentence, file=sys.stderr, flush=True)


def _bound_socket():
    """Reserves a port from processes that ask for any port; a server with SO_REUSEADDR can still listen."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound


def _step(options):
    """The place in a Slurm step; None: everything runs on this machine."""
    step = _slurm.Step.here()
    if step is None or (options.nodes == 1 and options.servers == 0):
        return step
    if step.nodes * step.tasks == 1:
        return None  # a shell in a job, in which the user emulates nodes
    raise ServicesError(
        "--nodes and --servers are for a single machine: under srun the step has the nodes, and `srun addend serve` starts "
        "summation servers",
        _USAGE,
    )


def _run(options):
    step = _step(options)
    # Not under TMPDIR: the path of a Unix socket has at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="addend-", dir="/tmp")
    logs = options.log_dir or folder
    if step is None:
        layout = Layout(options.job, options.nodes, options.ranks, options.servers, options.partition_bytes)
        services = Services(layout, folder, logs)
    else:
        services = _slurm.NodeServices(step, options, folder, logs)
    ranks, relay, status, asked = [], Relay(), 1, False
    try:
        services.start()
        status = 0
        with _bound_socket() as master:
            _start_ranks(options, services, _places(options, step, services, master.getsockname()[1]), relay, ranks)
            status = _attend(ranks, relay, options.grace)
            return status
    except _Ended:
        status, asked = 0, True  # nothing has failed
        raise
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # a signal must not interrupt the cleanup
        end_all(ranks, relay, _KILLED_AFTER_S if step is None else options.grace)
        if step is not None:
            services.leave(relay, asked)
        end_all(services.children, relay, 0)  # services have no state to save
        relay.drain()
        if status and options.log_dir is None and services.children:
            _keep_logs(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _keep_logs(folder):
    kept = tempfile.mkdtemp(prefix="addend-logs-", dir="/tmp")
    for name in os.listdir(folder):
        if name.endswith(".log"):
            shutil.move(os.path.join(folder, name), kept)
    _say("the services' logs are in %s" % kept)


# ---- the command ----

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end(number, _):
    for one in _ENDING:
        signal.signal(one, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
    raise _Ended(number)


def _attempt(options):
    try:
        for number in _ENDING:
            signal.signal(number, _end)
        _horovod_variables.translate(os.environ)
        return _run(options)
    except ServicesError as error:
        _say(str(error))
        return error.status
    except _Ended as ended:
        return 128 + ended.number


def _under_guard(body):
    """Runs body() in a child process that cleans up even if this process, the visible parent, is killed."""
    parent = os.getpid()
    guarded = os.fork()
    if guarded == 0:
        status = _BUG
        try:
            # Signals reach the child only from this process, or because this process ended.
            os.setsid()
            die_with_parent(signal.SIGTERM, parent)
            status = body()
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        finally:
            os._exit(status)
    for number in _ENDING:
        signal.signal(number, lambda number, _: os.kill(guarded, number))
    status = os.waitstatus_to_exitcode(os.waitpid(guarded, 0)[1])
    return status if status >= 0 else 128 - status


def _serve(arguments):
    parser = _Parser(
        prog="addend serve", usage="addend serve [--rendezvous FOLDER] [-- FLAGS of addend-summation]",
        description="Under srun, on a node of its own: a summation server for the job's `addend run`, until that ends. "
        "SIGTERM makes it hand over its partitions and leave.",
    )
    parser.add_argument("--rendezvous", metavar="FOLDER", help="as that of addend run")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    try:
        options = parser.parse_args(arguments)
        flags = options.flags[1:] if options.flags[:1] == ["--"] else options.flags
        return _slurm.serve(options.rendezvous, flags, lambda text: print("addend serve: " + text, file=sys.stderr, flush=True))
    except ServicesError as error:
        print("addend serve: %s" % error, file=sys.stderr, flush=True)
        return error.status


def main(arguments=None):
    """Runs `addend ARGUMENTS...`; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    version = _core.lib.addend_version().decode()
    if arguments[:1] == ["--version"]:
        print("addend " + version)
        return 0
    if arguments[:1] in (["-h"], ["--help"]):
        print(_HELP % version, end="")
        return 0
    if arguments[:1] == ["serve"]:
        return _serve(arguments[1:])
    if arguments[:1] != ["run"]:
        print("addend: %s; see addend --help" % (
            "%r is no command" % arguments[0] if arguments else "there is no command"), file=sys.stderr)
        return _USAGE
    try:
        options = _parse(arguments[1:])
    except ServicesError as error:
        _say(str(error))
        return error.status
    return _under_guard(lambda: _attempt(options))
