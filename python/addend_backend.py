"""Makes "addend" a backend of torch.distributed: init_process_group("addend").

PyTorch 2.5 and newer call register() at the end of `import torch` (entry point group torch.backends);
with an older PyTorch, `import addend.torch` calls it. This module loads nothing of Addend's before
a group is made, so that an installation that is broken breaks no `import torch`.
"""

from typing import Any


def register() -> None:
    """Registers the backend. Does nothing the second time, or without torch.distributed."""
    import inspect

    import torch.distributed

    dist: Any = torch.distributed

    if not dist.is_available() or hasattr(dist.Backend, "ADDEND"):
        return
    keywords: "dict[str, Any]" = {"extended_api": True}
    if "devices" in inspect.signature(dist.Backend.register_backend).parameters:  # from PyTorch 2.0 on
        keywords["devices"] = ["cpu", "cuda"]
    dist.Backend.register_backend("addend", _create, **keywords)


def _create(options: Any, _: Any) -> Any:
    from addend.torch import _backend

    make: Any = _backend.create
    return make(options)
