"""`python -m rota`: the command line."""

import sys

from rota.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
