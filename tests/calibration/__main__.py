"""`python -m tests.calibration`: what is measured of the suite itself, and what is made from its tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from conformance.cli import scattered
from conformance.execution.selection import SelectionError
from conformance.problems.reading import MalformedTable
from tests.calibration import false_alarms, goldens, mutation, ranking, worse

COMMANDS = {
    "mutation": mutation,
    "false-alarms": false_alarms,
    "worse": worse,
    "rank": ranking,
    "goldens": goldens,
}


def main(words: list[str]) -> int:
    """Return the exit status of a command."""
    parser = argparse.ArgumentParser(prog="python -m tests.calibration", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        text = (module.declare.__doc__ or name).splitlines()[0]
        module.declare(commands.add_parser(name, help=text, description=text, allow_abbrev=False))
    arguments = parser.parse_args(words)
    try:
        if getattr(arguments, "ray", None) is not None:
            if getattr(arguments, "resume", None) is not None:
                raise SelectionError("--ray and --resume: give one of them")
            # each unit holds one device, of as many as its machine has
            return scattered.run([*words, "--jobs=1"], arguments, "tests.calibration", [Path(__file__).parents[1]])
        return int(arguments.run(arguments))
    except (MalformedTable, SelectionError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
