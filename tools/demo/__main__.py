"""Trains a small model on this machine, with Addend between the ranks; see scripts/demo."""

import argparse
import pathlib
import shutil
import signal
import sys
import tempfile
import time

from processes import DemoError
from training import Training
from view import make_view, plot


class Ended(BaseException):
    """Raised by Ctrl-C or SIGTERM."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number


def _end(number, _):
    # A second signal must not interrupt the cleanup.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Ended(number)


def parse_options():
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.split(";")[0] + ".")
    parser.add_argument("--nodes", type=int, default=4, help="agents, with one trainer each")
    parser.add_argument("--cpu-servers", type=int, default=2, help="CPU summation servers")
    parser.add_argument("--steps", type=int, default=160, help="of the first run")
    parser.add_argument(
        "--second-steps", type=int, default=40, help="of the second run, without CPU servers"
    )
    options = parser.parse_args()
    if options.nodes < 1 or options.cpu_servers < 0 or options.second_steps < 1:
        parser.error("there must be at least one node and one step, and no negative number")
    if options.steps < options.second_steps:
        parser.error("--steps must be at least --second-steps, so that their checksums compare")
    return options


def describe(options):
    servers = f"{options.cpu_servers} CPU summation server{'s' * (options.cpu_servers != 1)}"
    return f"1 scheduler, {servers}, {options.nodes} agents, {options.nodes} trainers"


def run(options, folder):
    start = time.monotonic()
    print(f"First run: {describe(options)}; a character-level transformer learns the GPL.")
    # Both happen before the step whose checksums are compared.
    first = Training(
        folder / "first",
        options.nodes,
        options.cpu_servers,
        options.steps,
        checkpoint_step=options.second_steps,
        kill_step=max(1, options.second_steps // 3),
        add_step=max(1, options.second_steps * 2 // 3),
    )
    first.run(make_view().show)
    print(f"\nSecond run: the same training without any CPU server, {options.second_steps} steps.")
    second = Training(folder / "second", options.nodes, 0, options.second_steps)
    second.run(make_view().show)
    return summarize(options, first, second, time.monotonic() - start)


def summarize(options, first, second, seconds):
    losses = [line["loss"] for line in first.progress]
    shares = "\n".join(f"  {name:<14}{share:7.1%}" for name, share in first.traffic())
    with_servers = first.checksum(options.second_steps)
    without = second.checksum()
    print(f"\nLoss, from {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps:")
    print(plot(losses))
    print(f"\nWho summed the gradients in the first run, of those that lived to its end:\n{shares}")
    print("\nSHA-256 of the weights:")
    print(f"  after step {options.steps}: {first.checksum()}")
    print(f"  after step {options.second_steps}, {options.cpu_servers} CPU servers: {with_servers}")
    print(f"  after step {options.second_steps}, no CPU server: {without}")
    equal = with_servers == without
    if equal:
        changed = ", though a server was killed and another added" if first.news else ""
        print(f"\nEqual: the same bits, whoever sums{changed}. ({seconds:.0f} s)")
    else:
        print("\nNOT EQUAL: the two runs differ, which must never happen.", file=sys.stderr)
    return 0 if equal else 1


def main():
    options = parse_options()
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    # Not under TMPDIR: the path of a Unix socket has at most 107 bytes.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="addend-demo-", dir="/tmp"))
    try:
        status = run(options, folder)
    except DemoError as error:
        print(f"\nscripts/demo: {error}\nAll logs are in {folder}.", file=sys.stderr)
        return 1
    except Ended as ended:
        shutil.rmtree(folder, ignore_errors=True)
        print("\nEnded; no process is left.", file=sys.stderr)
        return 128 + ended.number
    shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
