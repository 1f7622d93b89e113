"""horovod.common.exceptions, by Addend."""

from addend.torch import HorovodInternalError
from addend.torch.elastic import HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]
