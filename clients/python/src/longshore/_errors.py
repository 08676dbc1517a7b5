"""What a handler raises to say how its attempt ends, and what it becomes in the reply."""
from __future__ import annotations

from datetime import timedelta
from typing import Dict, Union

Duration = Union[int, float, timedelta, str]
"""Seconds, a timedelta, or a text such as "30s"."""


def duration(value: Duration) -> str:
    """As the contract writes a duration; a number is seconds, to the millisecond, and above zero."""
    if isinstance(value, str):
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    milliseconds = round(seconds * 1000)
    if milliseconds < 1:
        raise ValueError(f"a duration must be above zero, not {value!r}")
    return f"{milliseconds}ms"


class Permanent(Exception):
    """No other attempt would help: the run goes straight to the dead letters."""


class Retry(Exception):
    """The attempt failed; the next one follows after this delay, in place of the type's back-off."""

    def __init__(self, after: Duration, message: str = "tried again later") -> None:
        super().__init__(message)
        self.after = duration(after)


class Snooze(Exception):
    """The job is put back for so long; no attempt is used."""

    def __init__(self, wait: Duration) -> None:
        super().__init__("snoozed")
        self.wait = duration(wait)


class Detach(Exception):
    """The attempt goes on elsewhere, for so long without a sign; who has `ctx.token` ends it."""

    def __init__(self, lasts: Duration) -> None:
        super().__init__("detached")
        self.lasts = duration(lasts)


class Cancelled(Exception):
    """The attempt was asked to stop, or has lost its lease: what it does further counts no more."""


def headers_of(error: BaseException) -> Dict[str, str]:
    """The reply's headers for a handler that raised this."""
    if isinstance(error, Snooze):
        return {"Longshore-Snooze": error.wait}
    if isinstance(error, Detach):
        return {"Longshore-Detach": error.lasts}
    code = "422" if isinstance(error, Permanent) else "503" if isinstance(error, Retry) else "500"
    known = isinstance(error, (Permanent, Retry, Cancelled)) and str(error)
    text = " ".join((str(error) if known else f"{type(error).__name__}: {error}").split())
    text = text[:1000].encode("utf-8", "replace").decode()  # no header takes a lone surrogate
    headers = {"Nats-Service-Error-Code": code, "Nats-Service-Error": text}
    if isinstance(error, Retry):
        headers["Longshore-Retry-After"] = error.after
    return headers
