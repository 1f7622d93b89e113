"""python3 -m addend: the command `addend`, also where the package is not installed."""

import sys

from ._run import main

if __name__ == "__main__":
    sys.exit(main())
