"""What tests of addend.torch ask inside of a rank."""

import addend._core
from addend.torch._gather import gather_async

OWN = "addend.test/"  # the names of what the tests themselves exchange


def gathered(tensor):
    """Every rank's tensor."""
    return gather_async(tensor, "%s%s/%s" % (OWN, tensor.dtype, tuple(tensor.shape))).wait()


def declared():
    """The names of the declared tensors, without those of the tests themselves."""
    return sorted(name for name in addend._core.declared_under("") if not name.startswith(OWN))
