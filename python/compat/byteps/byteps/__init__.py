"""BytePS's names, by Addend (package addend-byteps): for scripts that stay as they are.

byteps.torch is addend.torch.byteps. There is no BytePS here: see https://github.com/bytedance/byteps.
"""

from addend import __version__

__all__ = ["__version__"]
