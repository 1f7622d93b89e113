"""Helpers for tests of addend.torch that run inside of a rank."""

import addend._core
from addend.torch._gather import gather_async

# The prefix of the names of the tests' own tensors.
OWN = "addend.test/"


def gathered(tensor):
    """Every rank's tensor."""
    return gather_async(tensor, "%s%s/%s" % (OWN, tensor.dtype, tuple(tensor.shape))).wait()


def declared():
    """The names of the declared tensors, without the tests' own."""
    return sorted(name for name in addend._core.declared_under("") if not name.startswith(OWN))
