"""What a handler knows of its attempt, and says while it works."""
from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import re
import threading
from concurrent.futures import Executor
from datetime import datetime, timezone
from typing import Any, Callable, Coroutine, Dict, Mapping, Optional, Protocol, Set, Tuple

from ._errors import Cancelled, Permanent

STEP_ANSWER_SECONDS = 5.0
STEP_TRIES = 5
STEP_BYTES = 512 << 10
LINE_MAX = 4096  # what a node reads of a line


class Channel(Protocol):  # the way to the node that holds the job
    def signal(self, word: str, body: bytes) -> Coroutine[Any, Any, None]:
        """Sends a signal; nobody answers."""

    async def ask(self, word: str, body: bytes, seconds: float) -> Tuple[Mapping[str, str], bytes]:
        """Sends a signal and waits for the node's answer: its headers, in lower case, and body."""


class Context:
    """One attempt of one run. Its methods may be called on the event loop and in a handler's thread."""

    def __init__(self, headers: Mapping[str, str], channel: Channel, executor: Optional[Executor] = None) -> None:
        self.headers: Dict[str, str] = dict(headers)
        """The job's own headers and Longshore's about the run."""
        own = {name.lower(): text for name, text in headers.items()}
        self.run_id = own.get("longshore-run-id", "")
        self.tenant = own.get("longshore-tenant", "default")
        self.type = own.get("longshore-type", "")
        self.queue = own.get("longshore-queue", "")
        self.round = int(own.get("longshore-round") or 1)
        self.attempt = int(own.get("longshore-attempt") or 1)
        self.max_attempts = int(own.get("longshore-max-attempts") or 1)
        self.deadline = own.get("longshore-attempt-deadline", "")
        """When this attempt is over (RFC 3339)."""
        self.token = own.get("longshore-attempt-token", "")
        """Ends this attempt by `runs.complete` or `runs.fail`, once it is detached."""
        self.content_type = own.get("content-type", "application/json")
        self._channel = channel
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._cancelled = threading.Event()
        self._sent: Set["asyncio.Task[None]"] = set()
        self._uses: Dict[str, int] = {}
        self._open: Set[str] = set()
        self._on_cancel: Callable[[], None] = lambda: None

    @property
    def cancelled(self) -> bool:
        """Whether the attempt was asked to stop. An async handler is cancelled then; one in a thread looks here."""
        return self._cancelled.is_set()

    def progress(self, value: Any) -> None:
        """An event, and kept in the record: a number is a percentage, else any JSON of at most 4,096 bytes."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        body = as_json({"percent": value} if is_number else value)
        if len(body) > 4096:
            raise ValueError(f"progress has {len(body)} bytes, more than 4,096")
        self._send("progress", body)

    def log(self, line: str) -> None:
        """A line for the node's log and the run's record, cut at 512 bytes there."""
        self._send("log", str(line)[:LINE_MAX].encode("utf-8", "replace"))  # a file's name may have lone surrogates

    def step_key(self, name: str) -> str:
        """An idempotency key for what the next step of this name does outside; the same in every attempt."""
        uses = self._uses.get(name, 0)
        return f"{self.run_id}/{name}#{uses if name in self._open else uses + 1}"

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of `work`, which is not done again once its result is stored, whatever dies.

        On the event loop: `await ctx.step(…)`, where `work` is a coroutine function or a function that runs in a
        thread. In a handler's thread: `ctx.step(…)`. The result is JSON of at most 512 KiB, and what JSON makes of it
        from the first attempt on. Raises `Cancelled` if the attempt has lost its job.
        """
        if _is_on(self._loop):
            return self._step(name, work)
        number = self._begin(name)
        try:
            stored = self._call(self._get(name, number))
            return stored[0] if stored else self._call(self._put(name, number, work()))
        finally:
            self._open.discard(name)

    async def _step(self, name: str, work: Callable[[], Any]) -> Any:
        number = self._begin(name)
        try:
            stored = await self._get(name, number)
            return stored[0] if stored else await self._put(name, number, await run(work, (), self._executor))
        finally:
            self._open.discard(name)

    def _begin(self, name: str) -> int:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise ValueError(f"a step's name has 1 to 64 of A-Z a-z 0-9 _ -, not {name!r}")
        if name in self._open:
            raise RuntimeError(f"step {name} is at work already: steps at the same time need names of their own")
        self._open.add(name)
        self._uses[name] = self._uses.get(name, 0) + 1
        return self._uses[name]

    async def _get(self, name: str, number: int) -> Tuple[Any, ...]:
        answer = await self._ask("step-get", {"name": name, "n": number})
        return (answer["result"],) if "result" in answer else ()

    async def _put(self, name: str, number: int, result: Any) -> Any:
        text = result_as_json(result)
        if len(text) > STEP_BYTES:
            raise Permanent(f"the result of step {name} has {len(text)} bytes, more than {STEP_BYTES}")
        result = json.loads(text)  # as a later attempt finds it
        await self._ask("step-put", {"name": name, "n": number, "result": result})
        return result

    async def _ask(self, word: str, request: Dict[str, Any]) -> Dict[str, Any]:
        body = as_json(request)
        problem, nth = "no node answers", 0
        while nth < STEP_TRIES or not is_past(self.deadline):  # the clock may be wrong
            if self.cancelled:
                raise Cancelled("the attempt was asked to stop")
            try:
                headers, answer = await self._channel.ask(word, body, STEP_ANSWER_SECONDS)
            except Exception as error:  # nobody there, or no answer in time: asked again
                problem = f"no node answers: {type(error).__name__}"
            else:
                if headers.get("longshore-cancel") == "true":
                    self.cancel()
                    raise Cancelled("the attempt was asked to stop, or has lost its lease")
                code = headers.get("nats-service-error-code")
                problem = headers.get("nats-service-error", code or "")
                if code is None:
                    return json.loads(answer or b"{}")
                if code != "503":
                    break
                if nth == 1:
                    self.log(f"step {request['name']} is asked about again: {problem}")
            await asyncio.sleep(0.2 * 2 ** min(nth, 4))
            nth += 1
        raise RuntimeError(f"{word} of {request['name']}: {problem}")

    def cancel(self) -> None:
        """Has the handler stopped, once: what it does then is not interrupted. On the event loop only."""
        if not self._cancelled.is_set():
            self._cancelled.set()
            self._on_cancel()

    async def sent(self) -> None:
        """Returns once everything that was signalled is on its way."""
        await asyncio.gather(*self._sent, return_exceptions=True)

    async def _signal(self, word: str, body: bytes) -> None:
        with contextlib.suppress(Exception):  # the connection may be away, and no more kept for it: the job goes on
            await self._channel.signal(word, body)

    def _send(self, word: str, body: bytes) -> None:
        if _is_on(self._loop):
            task = self._loop.create_task(self._signal(word, body))
            self._sent.add(task)
            task.add_done_callback(self._sent.discard)
        else:
            self._call(self._signal(word, body))

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def as_json(value: Any) -> bytes:
    """The value as JSON, which has no NaN and no Infinity."""
    return json.dumps(value, allow_nan=False).encode()


def result_as_json(result: Any) -> bytes:
    """The result of a handler or step as JSON; where it has none, no other attempt would help."""
    try:
        return as_json(result)
    except (TypeError, ValueError, RecursionError) as error:
        raise Permanent(f"a result that is no JSON: {error}") from error


def is_past(moment: str) -> bool:
    """Whether a time as nodes write it is over; not if it is none."""
    try:
        return datetime.fromisoformat(moment.replace("Z", "+00:00")) <= datetime.now(timezone.utc)
    except (TypeError, ValueError):
        return False


def _is_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


async def run(work: Callable[..., Any], arguments: Tuple[Any, ...], executor: Optional[Executor] = None) -> Any:
    """What the function returns: a coroutine function on the event loop, any other in a thread."""
    try:
        if inspect.iscoroutinefunction(work):
            return await work(*arguments)
        result = await asyncio.get_running_loop().run_in_executor(executor, lambda: _in_thread(work, arguments))
        return await result if inspect.isawaitable(result) else result
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # it would end the event loop with all other jobs, or at least the reply
        raise RuntimeError(f"it raised {error!r}") from error


def _in_thread(work: Callable[..., Any], arguments: Tuple[Any, ...]) -> Any:
    try:
        return work(*arguments)
    except StopIteration as error:  # no future takes one: who waits for the thread would never wake
        raise RuntimeError(f"it raised {error!r}") from error


async def call(handler: Callable[..., Any], payload: Any, context: Context, executor: Optional[Executor] = None) -> Any:
    """Calls a handler of a payload, or of a payload and a context."""
    given: Tuple[Any, ...] = (payload, context)
    try:
        inspect.signature(handler).bind(*given)
    except TypeError:
        given = (payload,)
    return await run(handler, given, executor)
