"""`forkrun doctor`: what this machine can enforce, layer by layer, each found out by doing it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from forkrun_sandbox import probe


def main(*, json_output: bool) -> int:
    """Print the examination on stdout; 0 where `--sandbox required` works, else 125."""
    examination = probe.examine()
    if json_output:
        print(json.dumps(asdict(examination)))
    else:
        sys.stdout.write(probe.as_text(examination))
    return 0 if examination.required_works else 125
