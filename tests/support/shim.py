"""Controls shim.c in a process: steps its wall clock, refuses it memory, delays its name lookups, or copies its synced files."""
import functools
import mmap
import pathlib
import struct
import subprocess
import tempfile

from tests.support.cluster import Cluster

SOURCE = pathlib.Path(__file__).with_name("shim.c")
NAMES = ["step_s", "fail_accept", "fail_watch", "accept_calls", "watch_calls", "lookups"]


@functools.cache
def _library():
    path = pathlib.Path(tempfile.mkdtemp(prefix="shim")) / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl"], check=True)
    return path


class Shim:
    """The numbers of shim.c as attributes, and the environment variables that load it."""

    def __init__(self, folder):
        path = pathlib.Path(tempfile.mkstemp(prefix="shim", dir=folder)[1])
        path.write_bytes(bytes(8 * len(NAMES)))
        with open(path, "r+b") as file:
            self.__dict__["_map"] = mmap.mmap(file.fileno(), 0)
        self.__dict__["variables"] = {"LD_PRELOAD": str(_library()), "ADDEND_TEST_SHIM": str(path)}

    def __getattr__(self, name):
        return struct.unpack_from("q", self._map, 8 * NAMES.index(name))[0]

    def __setattr__(self, name, value):
        struct.pack_into("q", self._map, 8 * NAMES.index(name), value)


class ShimmedCluster(Cluster):
    """A cluster whose processes with `shimmed` in their names have the shim; `step_s`: the error of the clock from the start; `synced`: a
    folder that gets a copy of every file at the moment when such a process syncs it.
    """

    def __init__(self, folder, shimmed, step_s=0, synced=None, **arguments):
        self.shim, self.shimmed = Shim(folder), shimmed
        self.shim.step_s = step_s
        if synced:
            self.shim.variables["ADDEND_TEST_SYNCED"] = str(synced)
        super().__init__(folder, **arguments)

    def start(self, name, command, host=None, env=None, cwd=None, stdout=None):
        env = env or self.environment()
        if self.shimmed in name:
            env = {**env, **self.shim.variables}
        return super().start(name, command, host, env, cwd, stdout)
