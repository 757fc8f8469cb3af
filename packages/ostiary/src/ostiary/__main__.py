"""``python -m ostiary`` is the program ``ostiary``."""

import sys

from ostiary.cli import main

if __name__ == "__main__":
    sys.exit(main())
