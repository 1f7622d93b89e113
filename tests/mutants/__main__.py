"""scripts/mutants."""
import argparse
import collections
import os
import pathlib
import signal
import sys

from tests.mutants import draw, judge, workplace

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["lib/plan", "lib/summation", "services/scheduler", "services/worker_agent"]
EQUIVALENT = pathlib.Path(__file__).with_name("equivalent.txt")


def options_of(arguments):
    parser = argparse.ArgumentParser(prog="mutants", description="Plants one-line faults, one after the other, and prints those that no unit test notices.")
    parser.add_argument("--seed", type=int, default=1, help="the choice of mutants; the same tree and seed give the same mutants")
    parser.add_argument("--count", type=int, default=20, help="the number of mutants that are tested")
    parser.add_argument("--folder", action="append", metavar="FOLDER", help=f"mutate the sources of this folder; may be repeated (default: {' '.join(FOLDERS)})")
    parser.add_argument("--skip", type=pathlib.Path, default=EQUIVALENT, metavar="FILE", help="mutants that change no behaviour, with the reasons")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="a test that runs longer hangs, and so notices the mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time")
    parser.add_argument("--lock", metavar="FILE", help="hold the lock of this file (flock) while a mutant is built and tested")
    parser.add_argument("--near", action="store_true", help="only the tests that mirror the mutant's folder (tests/unit/plan for lib/plan), not all that are linked with it")
    parser.add_argument("--list", action="store_true", help="print the mutants without testing them")
    return parser.parse_args(arguments)


def sources_of(root, folders):
    for folder in folders:
        if not (root / folder).is_dir():
            sys.exit(f"mutants: there is no folder {folder}")
    inside = tuple(f"{folder}/" for folder in folders)
    # A program's main() is in no unit test.
    names = [name for name in workplace.files_of(root) if name.endswith((".h", ".cc")) and name.startswith(inside) and not name.endswith("/main.cc")]
    return {name: (root / name).read_text() for name in names}


def difference(mutant):
    return f"{mutant.path}:{mutant.line}: {mutant.kind}\n-   {mutant.before}\n+   {mutant.after}"


def judge_mutants(options, mutants, place):
    """{outcome: [mutant]}, of as many mutants as were asked for."""
    found = collections.defaultdict(list)
    one_judge = judge.Judge(place, options.timeout, place.tree.parent / "outcomes.json")
    tested = 0
    for mutant in mutants:
        if tested == options.count:
            break
        begin = workplace.now()
        with workplace.held(options.lock):
            start = workplace.now()
            outcome, how = one_judge.judge(mutant)
        found[outcome].append((mutant, how))
        tested += outcome in (judge.NOTICED, judge.SURVIVED)
        waited = f", waited {start - begin:.0f} s" if start - begin >= 1 else ""
        print(f"{tested}/{options.count} {outcome:16} {mutant.path}:{mutant.line} {mutant.kind}{how and f', by {how}'}, {workplace.now() - start:.0f} s{waited}", flush=True)
    return found


def summary(found):
    noticed, survived = len(found[judge.NOTICED]), len(found[judge.SURVIVED])
    hangs = sum(how.startswith("a hang") for _, how in found[judge.NOTICED])
    return (f"noticed {noticed} of {noticed + survived} ({hangs} by a hang; drawn again: {len(found[judge.UNCOMPILED])} that did not compile, "
            f"{len(found[judge.SAME_CODE])} with the same machine code)")


def main(arguments):
    options = options_of(arguments)
    skip = draw.read_equivalent(options.skip.read_text())
    mutants = draw.draw(sources_of(ROOT, options.folder or FOLDERS), options.seed, skip)
    if options.list:
        for mutant, _ in zip(mutants, range(options.count)):
            print(difference(mutant))
        return 0
    with workplace.held(options.lock):
        place = workplace.Workplace(ROOT, options.jobs, options.near)
    found = judge_mutants(options, mutants, place)
    for mutant, _ in found[judge.SURVIVED]:
        print(f"survived: {difference(mutant)}")
    print(summary(found))
    return 1 if found[judge.SURVIVED] else 0


def interrupt(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        sys.exit(main(sys.argv[1:]))
    except workplace.Broken as error:
        sys.exit(f"mutants: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
