"""python3 -m addend: runs the command `addend`, even where the package is not installed."""

import sys

from ._run import main

if __name__ == "__main__":
    sys.exit(main())
