"""`python -m relatum` is the command `relatum`, for launchers that start modules."""

import sys

from relatum.cli import main

if __name__ == "__main__":
    sys.exit(main())
