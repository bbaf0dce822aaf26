"""What somebody else's code raised, in words."""

from __future__ import annotations

MAX_MESSAGE = 2000
"""Characters of an exception's message that are kept: one of megabytes fills records and terminal."""


def described(error: BaseException) -> str:
    """Type and message of what somebody else's code raised, whatever its `__str__` does and however long it is."""
    try:
        text = str(error)
    except BaseException as worse:  # KeyboardInterrupt as well, which nobody has typed
        text = f"(its message cannot be shown: {type(worse).__name__})"
    more = f" ... ({len(text):,} characters)" if len(text) > MAX_MESSAGE else ""
    return f"{type(error).__name__}: {text[:MAX_MESSAGE]}{more}"
