"""How every command and every pytest run of the suite ends."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The first five have the numbers, and the meanings, that they have in pytest."""

    GOOD = 0, "all that was asked for is as it should be, and something was verified"
    BAD = 1, "a failure, an error, or nothing verified on a device that --require names"
    INTERRUPTED = 2, "interrupted"
    INTERNAL = (
        3,
        "an error inside the suite, arithmetic or a device that no verdict can rest on, or a machine too busy to time",
    )
    UNUSABLE = 4, "wrong command line, input that cannot be used, or a device that --require names is not here"
    NOTHING = 5, "nothing was verified, or nothing of a file or name that was given, or all that was is waived"

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Make a number with its meaning."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


def meanings() -> str:
    """Return a line for each exit code, for help."""
    return "\n".join(f"  {code:d}  {code.meaning}" for code in ExitCode)
