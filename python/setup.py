"""The part of the build beyond pyproject.toml: the package includes the products of scripts/build.

libaddend.so goes beside the modules, the existing binaries of the services into the folder bin; with
ADDEND_BUNDLE=1 (scripts/wheel) these with their libraries. The build compiles nothing, and writes
nothing into the checkout.
"""

import atexit
import os
import pathlib
import re
import shutil
import sys
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "build" / "lib" / "libaddend.so"
FOR_GPUS = LIBRARY.with_name("libaddend_cuda.so")
BINARIES = ("addend-scheduler", "addend-summation", "addend-agent", "addendctl")


class BuildWithLibrary(build_py):
    def run(self):
        if not LIBRARY.exists():
            raise SystemExit("%s does not exist: run scripts/build first, then install again" % LIBRARY)
        super().run()
        package = pathlib.Path(self.build_lib) / "addend"
        self._carry(LIBRARY, package)
        if FOR_GPUS.exists():  # only a build with CUDA has it
            self._carry(FOR_GPUS, package)
        self._carry(ROOT / "LICENSE", package)
        existing = [ROOT / "build" / "bin" / name for name in BINARIES if (ROOT / "build" / "bin" / name).exists()]
        if os.environ.get("ADDEND_BUNDLE") == "1":
            sys.path.insert(0, str(ROOT / "python"))
            from bundle import bundle

            bundle(existing, package / "bin")
            return
        for binary in existing:
            self._carry(binary, package / "bin")

    def _carry(self, file, folder):
        self.mkpath(str(folder))
        shutil.copy2(file, folder)


class PlatformWheel(bdist_wheel):
    """A wheel for any Python 3, because ctypes needs no ABI of it, but only for this kind of machine."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        platform = super().get_tag()[2]
        if os.environ.get("ADDEND_BUNDLE") == "1":
            # As lib/client/old_glibc.cc has it: nothing in the wheel needs more of the machine.
            platform = platform.replace("linux_", "manylinux_2_28_")
        return "py3", "none", platform


def version():
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"^project\(addend VERSION ([0-9.]+)", text, re.M)[1]


scratch = tempfile.mkdtemp(prefix="addend-setup-")
atexit.register(shutil.rmtree, scratch, ignore_errors=True)
setup(
    version=version(),
    license="Apache-2.0",
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel},
    options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
)
