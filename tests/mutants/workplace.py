"""A copy of the working tree in which mutants are built and tested."""
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import time


# A mutant may allocate endlessly.
_DATA = 4 << 30
_GRACE_S = 5


class Broken(Exception):
    """The tree fails without any mutant."""


def files_of(root):
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, check=True, capture_output=True)
    names = sorted(set(listed.stdout.decode().split("\0")) - {""})
    return [name for name in names if (root / name).is_file()]


def refresh(root, tree):
    """Makes `tree` a copy of the root; returns its digest. Equal files keep their times."""
    names, digest = files_of(root), hashlib.sha256()
    for name in names:
        content = (root / name).read_bytes()
        digest.update(f"{name} {len(content)} ".encode() + content)
        copy = tree / name
        if not copy.is_file() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
        copy.chmod((root / name).stat().st_mode)
    for path in sorted(tree.rglob("*")):
        parts = path.relative_to(tree).parts
        if path.is_file() and parts[0] != "build" and "/".join(parts) not in set(names):
            path.unlink()
    return digest.hexdigest()


@contextlib.contextmanager
def held(path):
    if path is None:
        yield
        return
    with open(path, "a", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def claim(folder):
    file = open(folder / "lock", "a", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise Broken(f"another run works in {folder}") from None
    return file


def end(process):
    """Ninja ends its compilers on a SIGTERM; they are in process groups of their own."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(command, limit_s=None, **options):
    """(status, output); status is None if the limit was reached."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, **options)
    try:
        output, _ = process.communicate(timeout=limit_s)
        return process.returncode, output.decode(errors="replace")
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process.returncode is None:
            end(process)


def failure_of(status, output):
    if status is None:
        return "a hang"
    if status == 0:
        return None
    if status < 0:
        return signal.Signals(-status).name
    failed = re.search(r"\[  FAILED  \] (\w+[./][\w./]+)", output)
    return failed[1] if failed else f"exit status {status}"


def _limit_memory():
    # Not the address space, of which etcd reserves ten gigabytes without use.
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA, _DATA))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def near_first(path, inputs, near_only):
    path = pathlib.PurePosixPath(path)
    linked = [name for name, sources in inputs.items() if any(os.path.dirname(one) == str(path.parent) for one in sources)]

    def mirrors(name):
        return [one for one in inputs[name] if one.startswith("tests/unit/") and one.split("/")[2] in path.parts]

    def distance(name):
        same_name = any(pathlib.PurePosixPath(one).stem.startswith(path.stem) for one in mirrors(name))
        return not mirrors(name), not same_name, len(inputs[name]), name

    return sorted((name for name in linked if mirrors(name) or not near_only), key=distance)


class Workplace:
    """Owns build-mutants: `tree` is the copy, `tree/build` its build folder."""

    def __init__(self, root, jobs, near_only=False):
        self._jobs = str(jobs)
        self._near = near_only
        self.tree = root / "build-mutants" / "tree"
        self._build = self.tree / "build"
        self._temporary = self.tree.parent / "tmp"
        self.tree.mkdir(parents=True, exist_ok=True)
        self._temporary.mkdir(exist_ok=True)
        self._environment = dict(os.environ, CCACHE_BASEDIR=str(self.tree), CCACHE_NOHASHDIR="1")
        self._claim = claim(self.tree.parent)
        self.digest = f"{refresh(root, self.tree)} {'near' if near_only else 'all'}"
        self._configure()
        self._inputs = self._find_tests()

    def _ninja(self, *arguments):
        return run(["ninja", "-C", self._build, *arguments], env=self._environment)

    def _configure(self):
        status, output = run(["cmake", "-G", "Ninja", "-S", self.tree, "-B", self._build, "-DCMAKE_BUILD_TYPE=Release", "-DADDEND_TESTS=ON",
                              "-DCMAKE_UNITY_BUILD=OFF"], env=self._environment)
        if status != 0:
            raise Broken(output)

    def _find_tests(self):
        """{unit test: the sources that it is linked from}"""
        _, text = run(["ctest", "--test-dir", self._build, "--show-only=json-v1"])
        found = {}
        for test in json.loads(text[text.index("{"):])["tests"]:
            _, output = self._ninja("-t", "inputs", f"tests/{test['name']}")
            inputs = {line.removeprefix(f"{self.tree}/") for line in output.splitlines()}
            if any(name.startswith("tests/unit/") for name in inputs):
                found[test["name"]] = inputs
        return found

    def tests_of(self, path):
        """The unit tests that are linked with the folder of the path, the nearest first."""
        return near_first(path, self._inputs, self._near)

    def object_of(self, path):
        path = pathlib.PurePosixPath(path)
        _, output = self._ninja("-t", "targets", "all")
        pattern = re.compile(rf"([^:\n]*CMakeFiles/[^:\n]*\.dir/(?:[^:\n]*/)?{re.escape(path.name)}\.o): ")
        folders = [str(parent) for parent in path.parents]
        found = [name for name in re.findall(pattern, output) if name.split("/CMakeFiles")[0] in folders]
        return max(found, key=len, default=None)

    def build(self, target):
        status, self.output = self._ninja("-j", self._jobs, target)
        return status == 0

    def content(self, target):
        return hashlib.sha256((self._build / target).read_bytes()).digest()

    def test(self, name, limit_s):
        """How the test failed, or None."""
        status, output = run([self._build / "tests" / name, "--gtest_fail_fast", "--gtest_brief=1"], limit_s, cwd=self._temporary, preexec_fn=_limit_memory,
                             env=dict(self._environment, TEST_TMPDIR=str(self._temporary)))
        how = failure_of(status, output)
        return how and f"{how} of {name}"

    @contextlib.contextmanager
    def planted(self, mutant):
        file = self.tree / mutant.path
        text = file.read_text()
        file.write_text(mutant.applied(text))
        try:
            yield
        finally:
            file.write_text(text)


def now():
    return time.monotonic()
