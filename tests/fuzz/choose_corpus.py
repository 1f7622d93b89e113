"""Chooses few inputs that together reach all edges that a target's inputs reach: choose_corpus.py TARGET NEW FOLDER...

Names the inputs as in tests/fuzz/corpus and copies them to the folder NEW.
"""
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

from tests.fuzz.test_fuzz import command_of

INPUTS_MOST = 70


def edges_of(target, folders):
    """The edges that each input reaches."""
    with tempfile.TemporaryDirectory() as scratch:
        control = pathlib.Path(scratch, "control")
        command = [*command_of(target), "-merge=1", "-use_counters=0", f"-merge_control_file={control}", scratch, *folders]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = control.read_text().splitlines()
        files = [pathlib.Path(line) for line in lines[2:2 + int(lines[0])]]
        reached = {}
        for line in lines[2 + len(files):]:
            kind, number, *edges = line.split()
            if kind == "COV":
                reached[files[int(number)]] = set(edges)
        return reached


def choose(reached):
    """Chooses the input that adds the most edges, repeatedly."""
    known, chosen = set(), []
    while reached and len(chosen) < INPUTS_MOST:
        best = max(reached, key=lambda path: (len(reached[path] - known), -path.stat().st_size))
        if not reached[best] - known:
            break
        known |= reached.pop(best)
        chosen.append(best)
    return chosen


def main(target, new, *folders):
    pathlib.Path(new).mkdir(parents=True)
    corpus = pathlib.Path(__file__).parent / "corpus" / target
    for path in choose(edges_of(target, [corpus, *folders])):
        name = path.name if path.parent == corpus else hashlib.sha1(path.read_bytes()).hexdigest()[:12]
        shutil.copy(path, pathlib.Path(new, name))


if __name__ == "__main__":
    main(*sys.argv[1:])
