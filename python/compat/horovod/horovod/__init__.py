"""Horovod's names, by Addend (package addend-horovod): for scripts that stay as they are.

horovod.torch is addend.torch. There is no Horovod here: see https://github.com/horovod/horovod.
"""

from addend import __version__

__all__ = ["__version__"]
