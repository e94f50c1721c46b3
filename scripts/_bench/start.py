"""From the start of a command to its first request; from a call of the API to the model's turn."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator

from _bench import peers, programs
from _bench.measure import Table, in_turn
from _bench.server import ModelServer

BARE = "fork + exec of `python -I -S -c pass`"
PEER_BASELINE = "codex exec"


def tables(options: argparse.Namespace) -> Iterator[Table]:
    yield _commands(options)
    yield _calls(options)


def _commands(options: argparse.Namespace) -> Table:
    with tempfile.TemporaryDirectory() as folder, ModelServer() as server:
        ours = {
            "forkrun spawn": programs.ours(folder),
            "forkrun spawn --sandbox none": programs.ours(folder, sandbox="none"),
        }
        floor = {
            "a script with the anthropic SDK": ["-c", programs.SDK_SCRIPT],
            "a script with http.client": ["-I", "-S", "-c", programs.HTTP_SCRIPT],
        }
        scripts = {
            name: programs.Program(argv=[programs.PYTHON, *arguments], cwd=folder)
            for name, arguments in floor.items()
        }
        found, missing = peers.programs(options, folder=folder, url=server.url)
        contenders = {
            name: programs.until_request(program, server, home=folder)
            for name, program in {**ours, **found, **scripts}.items()
        }
        pass_alone = [programs.PYTHON, "-I", "-S", "-c", "pass"]
        contenders["`python -I -S -c pass`, to its end"] = programs.until_end(pass_alone)
        rows = in_turn(contenders, rounds=options.rounds or 15)
    baseline = PEER_BASELINE if PEER_BASELINE in found else "a script with the anthropic SDK"
    return Table(
        title="From the start of a command to its first request at the server",
        unit="ms",
        rows=[*rows, *missing],
        baseline=baseline,
    )


def _calls(options: argparse.Namespace) -> Table:
    from _bench import api

    with api.Bench() as bench:
        contenders = {
            **bench.starts(),
            BARE: programs.until_end([programs.PYTHON, "-I", "-S", "-c", "pass"]),
            '`python -I -c "import msgspec"`': programs.until_end(
                [programs.PYTHON, "-I", "-c", "import msgspec"]
            ),
        }
        rows = in_turn(contenders, rounds=options.rounds or 30, warm_up=2)
    return Table(
        title="Python API: from the call to the first request at the broker",
        unit="ms",
        rows=rows,
        baseline=BARE,
    )
