"""Known-bad and known-good kernels, and the campaigns that measure the suite's own error rates."""

from __future__ import annotations

import argparse


def declare(parser: argparse.ArgumentParser) -> None:
    """What is measured of the suite itself: known-bad kernels that it detects, false alarms, the order of its cases."""
    from conformance.calibration import false_alarms, mutation, ranking  # which who imports one of them need not load

    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in (("mutation", mutation), ("false-alarms", false_alarms), ("rank", ranking)):
        text = (module.declare.__doc__ or name).splitlines()[0]
        module.declare(commands.add_parser(name, help=text, description=text, allow_abbrev=False))
