"""addend run: Addend's services and the ranks of a training script, on this machine, in one command."""

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback

from . import _core
from ._processes import Child, Relay, die_with_parent, end_all

BINARIES = ("addend-scheduler", "addend-summation", "addend-agent")
_USAGE = 64
_BUG = 70
_NOT_FOUND = 127
_START_LIMIT_S = 60
_KILLED_AFTER_S = 5

_HELP = """\
addend %s

  addend run [options] -- COMMAND...   starts Addend and the ranks of a training script on this machine
  addend --version
  addend run --help                    lists the options
"""


class RunError(Exception):
    """The reason why `addend run` cannot continue: one sentence, and the exit status."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


class _Ended(BaseException):
    """Raised by Ctrl-C or another signal that asks the command to end."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise RunError("%s; see addend run --help" % message, _USAGE)


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
        description="Starts a scheduler, summation servers and an agent per node on this machine, then "
        "COMMAND once per rank with the variables that torchrun sets, and ADDEND_SOCKET. COMMAND may "
        "begin with a .py file. Ends with the status of the first rank that fails, or 0.",
        epilog="Further flags of the services are read from the environment: --on-node-loss of the agent is "
        "ADDEND_ON_NODE_LOSS. ADDEND_BIN_DIR is the folder of the binaries.",
    )
    parser.add_argument("-n", "--ranks", "--nproc-per-node", type=_count(1), default=1, metavar="RANKS",
                        help="ranks per node (default: 1)")
    parser.add_argument("--nodes", type=_count(1), default=1, metavar="N",
                        help="nodes to emulate, each with an agent of its own (default: 1)")
    parser.add_argument("--servers", type=_count(0), default=0, metavar="K",
                        help="summation servers beside those in the agents (default: 0)")
    parser.add_argument("--partition-bytes", metavar="BYTES", help="of the agents (default: auto)")
    parser.add_argument("--job", default="run", help="name of the job (default: run)")
    parser.add_argument("--grace", type=float, default=10, metavar="SECONDS",
                        help="how long the other ranks may go on when one has failed (default: 10)")
    parser.add_argument("--log-dir", metavar="FOLDER",
                        help="keeps the services' logs there (default: they are removed)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("there is no command to run: it comes after --")
    if options.command[0].endswith(".py"):
        options.command.insert(0, sys.executable)
    return options


# ---- the services ----


def _bin_folders():
    """ADDEND_BIN_DIR alone if it is set; else the package's, a checkout build's and PATH's folders."""
    chosen = os.environ.get("ADDEND_BIN_DIR")
    if chosen:
        return [chosen]
    package = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.dirname(os.path.dirname(package))
    return [os.path.join(package, "bin"), os.path.join(checkout, "build", "bin"), *os.get_exec_path()]


def find_binaries():
    """The paths of scheduler, summation server and agent, all from one folder."""
    folders = _bin_folders()
    for folder in folders:
        paths = [os.path.join(folder, name) for name in BINARIES]
        if all(os.access(path, os.X_OK) for path in paths):
            return paths
    where = folders[0] if len(folders) == 1 else ", ".join(folders[:2]) + " or on PATH"
    raise RunError(
        "%s are not in %s: run scripts/build, or set ADDEND_BIN_DIR to their folder"
        % (", ".join(BINARIES), where),
        _USAGE,
    )


class _Services:
    """The scheduler, the summation servers and the agents of one run, on ports that the kernel chooses."""

    def __init__(self, options, folder):
        self.children = []
        self._options = options
        self._folder = folder
        self._logs = options.log_dir or folder
        os.makedirs(self._logs, exist_ok=True)

    def start(self):
        scheduler, summation, agent = find_binaries()
        first = self._start(scheduler, "scheduler", ["--insecure", "--listen=127.0.0.1:0", "--store=memory"])
        address = "--scheduler=127.0.0.1:%d" % self._await(first)["grpc"]
        member = [address, "--insecure", "--listen=127.0.0.1:0", "--data-listen=127.0.0.1:0", "--advertise=127.0.0.1"]
        started = [
            self._start(summation, "summation server %d" % i, member) for i in range(self._options.servers)
        ]
        for node in range(self._options.nodes):
            flags = member + self._agent_flags(node)
            started.append(self._start(agent, "agent of node %d" % node, flags))
        for one in started:
            self._await(one)

    def socket(self, node):
        return os.path.join(self._folder, "agent%d.sock" % node)

    def _agent_flags(self, node):
        options = self._options
        flags = [
            "--job=" + options.job,
            "--node-rank=%d" % node,
            "--num-nodes=%d" % options.nodes,
            "--local-size=%d" % options.ranks,
            "--socket=" + self.socket(node),
        ]
        if options.partition_bytes is not None:
            flags.append("--partition-bytes=" + options.partition_bytes)
        return flags

    def _start(self, binary, name, flags):
        file = name.replace(" ", "-")
        port_file = os.path.join(self._folder, file + ".ports")
        command = [binary, *flags, "--http=127.0.0.1:0", "--health-listen=off", "--port-file=" + port_file]
        with open(os.path.join(self._logs, file + ".log"), "wb") as log:
            child = Child(name, command, stdout=log, stderr=log)
        child.port_file, child.log = port_file, log.name
        self.children.append(child)
        return child

    def _await(self, child):
        """Waits until a service is serving; returns its ports."""
        deadline = time.monotonic() + _START_LIMIT_S
        while True:
            ports = child.ports()
            if ports is not None:
                return ports
            if child.poll() is not None:
                raise RunError("the %s did not start: %s" % (child.name, child.last_line()), _status(child))
            if time.monotonic() > deadline:
                raise RunError("the %s does not serve within %d s" % (child.name, _START_LIMIT_S))
            time.sleep(0.01)


# ---- the ranks ----


def _rank_environment(options, services, rank, port):
    node, local_rank = divmod(rank, options.ranks)
    env = dict(os.environ)
    if options.nodes * options.ranks > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # the ranks share the machine, as with torchrun
    env.setdefault("PYTHONUNBUFFERED", "1")  # a rank's output shows at once
    env.update(
        RANK=str(rank),
        WORLD_SIZE=str(options.nodes * options.ranks),
        LOCAL_RANK=str(local_rank),
        LOCAL_WORLD_SIZE=str(options.ranks),
        GROUP_RANK=str(node),
        GROUP_WORLD_SIZE=str(options.nodes),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        ADDEND_SOCKET=services.socket(node),
        ADDEND_JOB=options.job,
    )
    return env


def _start_ranks(options, services, port, relay, ranks):
    for rank in range(options.nodes * options.ranks):
        name = "rank %d" % rank
        try:
            child = Child(name, options.command, _rank_environment(options, services, rank, port))
        except OSError as error:
            raise RunError(
                "%s cannot be started: %s" % (options.command[0], error.strerror), _NOT_FOUND
            ) from None
        ranks.append(child)
        relay.add(child.stdout, b"[%d] " % rank, sys.stdout.buffer)
        relay.add(child.stderr, b"[%d] " % rank, sys.stderr.buffer)


def _status(child):
    """The exit status as a shell reports it."""
    return child.status if child.status >= 0 else 128 - child.status


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
    _say("%s ended with status %d" % (failed.name, _status(failed)))
    return _status(failed)


def _say(sentence):
    print("addend run: " + sentence, file=sys.stderr, flush=True)


def _bound_socket():
    """Reserves a port from processes that ask for any port; a server with SO_REUSEADDR can still listen."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound


def _run(options):
    # Not under TMPDIR: the path of a Unix socket has at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="addend-", dir="/tmp")
    services, ranks, relay = _Services(options, folder), [], Relay()
    try:
        services.start()
        with _bound_socket() as master:
            _start_ranks(options, services, master.getsockname()[1], relay, ranks)
            return _attend(ranks, relay, options.grace)
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
        end_all(ranks, relay, _KILLED_AFTER_S)
        end_all(services.children, relay, 0)  # services have no state to save
        relay.drain()
        shutil.rmtree(folder, ignore_errors=True)


# ---- the command ----

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end(number, _):
    raise _Ended(number)


def _attempt(options):
    try:
        for number in _ENDING:
            signal.signal(number, _end)
        return _run(options)
    except RunError as error:
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
    if arguments[:1] != ["run"]:
        print("addend: %s; see addend --help" % (
            "%r is no command" % arguments[0] if arguments else "there is no command"), file=sys.stderr)
        return _USAGE
    try:
        options = _parse(arguments[1:])
    except RunError as error:
        _say(str(error))
        return error.status
    return _under_guard(lambda: _attempt(options))
