"""Run ``ostiary-gateway`` with ``python -m ostiary_gateway``."""

import sys

from ostiary_gateway.cli import main

if __name__ == "__main__":
    sys.exit(main())
