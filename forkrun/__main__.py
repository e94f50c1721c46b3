"""`python -m forkrun` is the command `forkrun`."""

from __future__ import annotations

import sys

from forkrun.cli import main

sys.exit(main())
