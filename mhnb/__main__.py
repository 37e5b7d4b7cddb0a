"""Entry point of `python -m mhnb COMMAND`."""

import sys

from mhnb.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
