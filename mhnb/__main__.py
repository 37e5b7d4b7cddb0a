"""`python -m mhnb VERB`."""

import sys

from mhnb.cli import main

if __name__ == "__main__":
    sys.exit(main())
