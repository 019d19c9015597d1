"""`python -m pytest_cutile` is the command `pytest-cutile`."""

import sys

from pytest_cutile.cli import main

sys.exit(main())
