"""``python -m loadline`` and the console script."""

import sys

from loadline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
