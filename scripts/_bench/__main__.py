"""The command line of `scripts/bench`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from _bench import machine, plot, report
from _bench.measure import Table

SUBJECTS = ("start", "fork", "turns", "fanout", "workspace", "kill", "memory")


def main() -> int:
    options = _options()
    subjects = SUBJECTS if options.subject == "all" else (options.subject,)
    if options.peers is None:
        options.peers = ""
    texts: list[str] = []
    tables: list[Table] = []

    def say(text: str) -> None:
        texts.append(text)
        print(text + "\n", flush=True)

    say(machine.described())
    for subject in subjects:
        for table in importlib.import_module(f"_bench.{subject}").tables(options):
            tables.append(table)
            say(report.markdown(table))
    say(machine.load())
    if options.plot:
        plot.write(options.plot, tables)
    if options.into:
        report.replace_measured(options.into, "\n\n".join(texts))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("subject", choices=[*SUBJECTS, "all"])
    parser.add_argument(
        "--rounds", type=int, default=0, help="measurements of each (else a default)"
    )
    parser.add_argument("--runs", type=int, default=0, help="fanout: how many runs (default 100)")
    parser.add_argument(
        "--peers",
        nargs="?",
        const="all",
        metavar="A,B",
        help="start, memory: install these public peers (default all) and measure them too",
    )
    parser.add_argument(
        "--peers-folder",
        default=os.path.join(
            os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "forkrun-peers"
        ),
        metavar="DIR",
        help="where peers are installed, outside the repository",
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the tables into FILE.svg or FILE.png")
    parser.add_argument(
        "--into", metavar="FILE", help="put the tables between the two marks in this Markdown file"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
