"""Public peers: installed by name into a folder of their own, and how each sends one request."""

from __future__ import annotations

import argparse

from _bench.measure import Row
from _bench.programs import Program


def programs(
    options: argparse.Namespace, *, folder: str, url: str
) -> tuple[dict[str, Program], list[Row]]:
    return {}, []
