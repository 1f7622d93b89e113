"""Takes a rule of the protocol out of the code, as each patch in planted/ says, and counts the seeds until the simulator notices.

python -m tests.simulation.planted [--name=GLOB] [--starts=10] [--limit=SEEDS]
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import shutil
import signal
import statistics
import sys

from tests.mutants import workplace

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATCHES = pathlib.Path(__file__).with_name("planted")
TARGET = "tests/addend-simulate"
STRIDE = 10_000  # between two starts
# Most seeds take less than a second. A run that is not over by then hangs.
HANG_S = 150
# Mutations and faults without a patch, and the reasons.
EXCEPTIONS = {
    "M_GRANT_EARLY in spec/recovery.pml": "only RDMA grants memory: over TCP a node chooses the room of each result when its frame arrives",
    "the planted fault bundle_frames": "the simulated network carries whole frames, and does not run the reader of frames",
}

Patch = collections.namedtuple("Patch", "name rule counterparts path")
Found = collections.namedtuple("Found", "seeds sentence")  # seeds: None if the limit was reached


def read(path):
    head = path.read_text().split("\ndiff --git ")[0]
    rule = re.match(r"Rule: (.+)\n", head)
    if not rule:
        raise ValueError(f"{path.name} does not begin with its rule")
    counterparts = re.findall(r"M_\w+ in spec/\w+\.pml|the planted fault \w+", head)
    return Patch(path.stem, rule[1], counterparts, path)


def patches(pattern="*"):
    return [read(path) for path in sorted(PATCHES.glob("*.patch")) if fnmatch.fnmatch(path.stem, pattern)]


def violation_of(simulator, seed):
    """The violation in a run of the seed, or None."""
    status, output = workplace.run([simulator, f"--start={seed}", "--seeds=1", "--minimise=false"], HANG_S)
    if status == 0:
        return None
    violation = re.search(rf"^seed {seed}: (.*)", output, re.MULTILINE)
    return violation[1] if violation else workplace.failure_of(status, output)


class Workplace:
    """Owns build-planted: `tree` is a copy of the root, `tree/build` its build folder."""

    def __init__(self, root, jobs):
        self._jobs = str(jobs)
        self.tree = root / "build-planted" / "tree"
        self.tree.mkdir(parents=True, exist_ok=True)
        self._claim = workplace.claim(self.tree.parent)
        workplace.refresh(root, self.tree)
        # The copy lies in a repository, but git takes it for a plain folder.
        self._environment = dict(os.environ, CCACHE_BASEDIR=str(self.tree), CCACHE_NOHASHDIR="1", GIT_CEILING_DIRECTORIES=str(self.tree.parent))
        self._run("cmake", "-G", "Ninja", "-S", self.tree, "-B", self.tree / "build", "-DCMAKE_BUILD_TYPE=Release", "-DADDEND_TESTS=ON",
                  "-DCMAKE_UNITY_BUILD=OFF")
        self._planted = self.tree / "build" / TARGET
        self._sound = self.tree.parent / "sound"
        self._build()
        shutil.copy2(self._planted, self._sound)

    def _run(self, *command):
        status, output = workplace.run(command, cwd=self.tree, env=self._environment)
        if status != 0:
            raise workplace.Broken(f"{' '.join(map(str, command))}:\n{output[-4000:]}")

    def _build(self):
        self._run("ninja", "-C", self.tree / "build", "-j", self._jobs, TARGET)

    def count_seeds(self, patch, starts, limit):
        """A list of Found, by start."""
        self._run("git", "apply", patch.path)
        try:
            self._build()
            with concurrent.futures.ThreadPoolExecutor(int(self._jobs)) as pool:
                return list(pool.map(lambda start: self._until_violation(start, limit), starts))
        finally:
            self._run("git", "apply", "--reverse", patch.path)

    def _until_violation(self, start, limit):
        for played in range(limit):
            sentence = violation_of(self._planted, start + played)
            # The violation must come from the patch.
            if sentence and not violation_of(self._sound, start + played):
                return Found(played + 1, sentence)
        return Found(None, "")


def row(patch, found, limit):
    counts = sorted(limit + 1 if one.seeds is None else one.seeds for one in found)
    missed = sum(one.seeds is None for one in found)
    median, largest = statistics.median(counts), f"more than {limit} ({missed} of {len(found)})" if missed else str(counts[-1])
    sentence = next((one.sentence for one in found if one.sentence), "")
    return f"{patch.name} | {patch.rule} | {f'more than {limit}' if median > limit else f'{median:g}'} | {largest} | {sentence}"


def options_of(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description="Prints how many seeds the simulator needs to notice each defect.")
    parser.add_argument("--name", default="*", metavar="GLOB", help="the patches of these names, without .patch")
    parser.add_argument("--starts", type=int, default=10, help=f"the number of first seeds: 1, {STRIDE + 1}, {2 * STRIDE + 1}, ...")
    parser.add_argument("--limit", type=int, default=300, metavar="SEEDS", help="the most seeds from each start")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("ADDEND_JOBS", os.cpu_count())), help="compilers or simulators at a time")
    return parser.parse_args(arguments)


def main(arguments):
    options = options_of(arguments)
    chosen = patches(options.name)
    if not chosen:
        sys.exit(f"planted: there is no patch {options.name}")
    place = Workplace(ROOT, options.jobs)
    starts = [1 + i * STRIDE for i in range(options.starts)]
    missed = []
    print("defect | rule that is missing | seeds, median | seeds, most | first violation", flush=True)
    for patch in chosen:
        found = place.count_seeds(patch, starts, options.limit)
        print(row(patch, found, options.limit), flush=True)
        if any(one.seeds is None for one in found):
            missed.append(patch.name)
    if missed:
        print(f"not noticed within {options.limit} seeds of every start: {', '.join(missed)}")
    return 1 if missed else 0


def interrupt(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        sys.exit(main(sys.argv[1:]))
    except workplace.Broken as error:
        sys.exit(f"planted: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
