"""Calls a handler without a server."""
from __future__ import annotations

import asyncio
import json
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ._client import for_payload
from ._context import Context, as_json, call
from ._worker import read, written


class Report:
    """What a handler returned, as its run would have it, and said; what it raises is raised to the test."""

    def __init__(self, steps: Optional[Dict[Tuple[str, int], Any]] = None) -> None:
        self.result: Any = None
        self.progress: List[Any] = []
        self.log: List[str] = []
        self.steps: Dict[Tuple[str, int], Any] = {} if steps is None else steps
        """Results by name and number; give them to the next `run` to test a later attempt."""

    async def signal(self, word: str, body: bytes) -> None:
        if word == "progress":
            self.progress.append(json.loads(body))
        elif word == "log":
            self.log.append(body.decode())

    async def ask(self, word: str, body: bytes, seconds: float) -> Tuple[Mapping[str, str], bytes]:
        request = json.loads(body)
        key = (request["name"], request["n"])
        if word == "step-put":
            self.steps[key] = request["result"]
            return {}, b"{}"
        return {}, json.dumps({"result": self.steps[key]} if key in self.steps else {}).encode()


def run(handler: Callable[..., Any], payload: Any = None, *, headers: Optional[Mapping[str, str]] = None,
        steps: Optional[Dict[Tuple[str, int], Any]] = None) -> Report:
    """Calls a handler with a payload, as a worker would, and returns what it did; not on an event loop."""
    report = Report(steps)

    async def called() -> None:
        own = for_payload(headers, payload)
        context = Context({"Longshore-Run-Id": "test", "Longshore-Type": "test", **own}, report)
        sent = payload if isinstance(payload, bytes) else as_json(payload)
        body, said = written(await call(handler, read(context, sent), context))
        report.result = body if said else json.loads(body or b"null")
        await context.sent()

    asyncio.run(called())
    return report
