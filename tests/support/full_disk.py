"""A small separate disk that a test can fill."""
import contextlib
import os
import pathlib
import subprocess


class Disk:
    def __init__(self, path):
        self.path = pathlib.Path(path)
        self._ballast = self.path / "ballast"

    def fill(self):
        """Fills the disk: not a byte more can be written."""
        with open(self._ballast, "wb", buffering=0) as file:
            for size in (1 << 16, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self):
        self._ballast.unlink()


@contextlib.contextmanager
def small_disk(path, mebibytes=2):
    """Mounts a small disk at `path`, a folder that is created. Needs root."""
    os.makedirs(path)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "addend-test", path], check=True)
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)
