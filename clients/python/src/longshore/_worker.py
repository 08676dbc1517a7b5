"""Runs jobs: a NATS micro service whose endpoints are the handlers."""
from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Coroutine, Dict, List, Mapping, Optional, Set, Tuple

import nats
import nats.errors
import nats.micro
from nats.aio.client import Client as Nats

from ._client import Servers, addresses
from ._context import Context, call, is_past, result_as_json, run
from ._errors import Cancelled, Detach, Permanent, Retry, Snooze, headers_of

Hook = Callable[..., Any]
log = logging.getLogger("longshore")
ANSWER_WITHIN = 5.0  # seconds


class _Handler:
    def __init__(self, type: str, function: Callable[..., Any], slots: int) -> None:
        self.type, self.function, self.slots = type, function, slots
        self.free = asyncio.Semaphore(slots)


class _Channel:
    def __init__(self, connection: Nats, subject: str) -> None:
        self.connection, self._subject = connection, subject

    async def reply(self, body: bytes, headers: Dict[str, str]) -> None:
        await self.connection.publish(self._subject, body, headers=headers)

    async def signal(self, word: str, body: bytes) -> None:
        await self.connection.publish(self._subject, body, headers={"Longshore-Signal": word})

    async def ask(self, word: str, body: bytes, seconds: float) -> Tuple[Mapping[str, str], bytes]:
        headers = {"Longshore-Signal": word}
        answer = await self.connection.request(self._subject, body, timeout=seconds, headers=headers)
        return {name.lower(): text for name, text in (answer.headers or {}).items()}, answer.data


class Worker:
    """A process that runs jobs of some types.

    Jobs of all tenants unless `tenant` names one. While a handler works, heartbeats are sent: a handler whose event
    loop stands still for longer than `heartbeat` seconds loses its attempt, and one whose node does not answer for so
    long is cancelled; `None` sends none. Further options are those of `nats.connect`.
    """

    def __init__(self, servers: Servers = None, *, name: str = "longshore-python", tenant: str = "*",
                 namespace: str = "longshore", heartbeat: Optional[float] = 30, **options: Any) -> None:
        self._servers = addresses(servers)
        self._name, self._tenant, self._namespace, self._heartbeat = name, tenant, namespace, heartbeat
        self._options = {"max_reconnect_attempts": -1, **options}
        self._wanted: List[Tuple[str, Callable[..., Any], int]] = []
        self._before: List[Hook] = []
        self._after: List[Hook] = []
        self._on_error: List[Hook] = []
        self._tasks: Set["asyncio.Task[None]"] = set()
        self._at_work: Dict[Context, _Channel] = {}
        self._sent: Dict[_Channel, Tuple[bytes, Dict[str, str]]] = {}  # replies that the server may not have yet
        self._published: List[_Channel] = []  # those among them that it was not asked about
        self._settles = False
        self._stop: Optional[asyncio.Event] = None

    def handler(self, type: str, *, slots: int = 1) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates the function `(payload, ctx)` or `(payload)` that runs jobs of a type, `slots` of them at once.

        What it returns is the result: JSON, or bytes. A function that is not async runs in a thread.
        """
        if slots < 1:
            raise ValueError(f"slots of {type} must be at least 1, not {slots}")
        if any(type == other for other, _, _ in self._wanted):
            raise ValueError(f"{type} has a handler already")

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self._wanted.append((type, function, slots))
            return function

        return add

    def before(self, hook: Hook) -> Hook:
        """Decorates a function `(ctx, payload)` to call before each handler; what it raises ends the attempt."""
        self._before.append(hook)
        return hook

    def after(self, hook: Hook) -> Hook:
        """Decorates a function `(ctx, result)` that is called after each handler that succeeded."""
        self._after.append(hook)
        return hook

    def on_error(self, hook: Hook) -> Hook:
        """Decorates a function `(ctx, error)` that is called after each handler that raised."""
        self._on_error.append(hook)
        return hook

    def run(self) -> None:
        """Runs jobs until SIGTERM or SIGINT; jobs that run are finished then.

        Raises the connection's last error if that is closed for good.
        """
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """As `run`, on an event loop that is there."""
        self._stop, loop = asyncio.Event(), asyncio.get_running_loop()
        with contextlib.ExitStack() as ended:
            for number in (signal.SIGTERM, signal.SIGINT):
                # Refused on Windows, and outside the main thread.
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    loop.add_signal_handler(number, self._stop.set)
                    ended.callback(loop.remove_signal_handler, number)
            await self._serve(self._stop)

    async def _serve(self, stop: asyncio.Event) -> None:
        options = {**self._options, "closed_cb": self._closed, "reconnected_cb": self._reconnected}
        connecting = asyncio.ensure_future(nats.connect(self._servers, **options))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({connecting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                return  # it has done nothing yet
        finally:
            stopping.cancel()
            connecting.cancel()
        connection = await connecting
        handlers = [_Handler(*wanted) for wanted in self._wanted]
        self._executor = ThreadPoolExecutor(2 * sum(slots for _, _, slots in self._wanted) or 1, "longshore")
        try:
            await connection.subscribe(f"{self._namespace}.cancel.{self._tenant}.*", cb=self._cancel)
            metadata = {"longshore.heartbeat": f"{round(self._heartbeat * 1000)}ms"} if self._heartbeat else {}
            service = await nats.micro.add_service(connection, name=self._name, version="0.1.0", metadata=metadata)
            for handler in handlers:
                await self._serve_type(service, connection, handler)
            await connection.flush()
            refused = connection.last_error
            if refused and "permissions violation" in str(refused).lower():
                raise refused  # a worker without its subscriptions would wait for ever
            log.info("taking jobs of %s", ", ".join(handler.type for handler in handlers))
            await stop.wait()
            for handler in handlers:
                # Nothing begins any more: the jobs that wait pass on a slot beyond the last one, as they go back.
                handler.free.release()
            await drain(service)
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if connection.is_closed:
                raise connection.last_error or nats.errors.ConnectionClosedError()
        finally:
            self._executor.shutdown(wait=False)
            try:
                await connection.drain()
            except (nats.errors.Error, OSError):  # it is away, or closed already
                with contextlib.suppress(OSError):  # nats-py writes to the lost connection what it had still to send
                    await connection.close()

    async def _closed(self) -> None:
        """Without a connection no job comes any more, and no reply is sent."""
        if self._stop is not None:
            self._stop.set()
        for context in list(self._at_work):
            context.cancel()
        if own := self._options.get("closed_cb"):
            await own()

    async def _reconnected(self) -> None:
        """Replies may be lost with the old connection, and nodes may take handlers for gone with it."""
        sent, self._sent = self._sent, {}
        for again in [self._show(), *(self._reply_again(channel, *reply) for channel, reply in sent.items())]:
            self._begin(again)
        if own := self._options.get("reconnected_cb"):
            await own()

    async def _show(self) -> None:
        """Signals that the jobs are worked on; a node may look a moment later for the connection that got them."""
        with contextlib.suppress(nats.errors.Error):
            for _ in range(3):
                for channel in list(self._at_work.values()):
                    await channel.signal("started", b"")  # a heartbeat would promise more of them
                await asyncio.sleep(2 if self._at_work else 0)

    async def _reply_again(self, channel: _Channel, body: bytes, headers: Dict[str, str]) -> None:
        """Replies until the node says that the attempt is over, or says nothing for too long."""
        until = time.monotonic() + (self._heartbeat or 30)
        while time.monotonic() < until and not channel.connection.is_closed:
            try:
                answer, _ = await channel.ask("heartbeat", b"", ANSWER_WITHIN)
                if answer.get("longshore-cancel") == "true":
                    return
                await channel.reply(body, headers)
            except Exception as error:  # the node may be away, too
                log.debug("a reply that may be lost: %r", error)
                await asyncio.sleep(0.5)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_type(self, service: Any, connection: Nats, handler: _Handler) -> None:
        async def arrived(message: Any) -> None:
            headers = {name: text for name, text in (message.headers or {}).items()}
            if not any(name.lower() == "longshore-run-id" for name in headers):
                return  # no job: another client had the server send something here
            subject, body = message._msg.reply, message.data  # its own methods send one reply, and no signals
            # A task per job, as nats-py awaits each callback before it takes the next message.
            self._begin(self._job(_Channel(connection, subject), handler, headers, body))

        await service.add_endpoint(
            name=handler.type.replace(".", "-"), subject=f"{self._namespace}.work.{self._tenant}.{handler.type}",
            handler=arrived, metadata={"longshore.slots": str(handler.slots)})

    async def _job(self, channel: _Channel, handler: _Handler, headers: Dict[str, str], body: bytes) -> None:
        try:
            await self._reply(channel, *await self._attempt(channel, handler, headers, body))
        except Exception:  # such as a reply that cannot be sent: without any the attempt would last to its time limit
            log.exception("a job of %s", handler.type)
            if not channel.connection.is_closed:
                await self._reply(channel, b"", {"Nats-Service-Error-Code": "500"})

    async def _reply(self, channel: _Channel, body: bytes, headers: Dict[str, str]) -> None:
        """Replies, and keeps the reply until the server has it."""
        self._sent[channel] = (body, headers)
        try:
            await channel.reply(body, headers)
        except nats.errors.OutboundBufferLimitError:
            return  # the connection is away, and so much is to be sent that nats-py keeps no more
        except Exception:
            self._sent.pop(channel, None)
            raise
        self._published.append(channel)
        if not self._settles:
            self._settles = True
            self._begin(self._settle(channel.connection))

    async def _settle(self, connection: Nats) -> None:
        """Forgets what the server has, with one question for all replies before it."""
        try:
            while self._published:
                before, self._published = self._published, []
                while connection.is_connected and connection.pending_data_size:
                    await asyncio.sleep(0.01)  # nats-py sends its ping before what is still to be sent
                # Never cancelled: nats-py's reader would end at the answer.
                flushed = asyncio.ensure_future(connection.flush(3600))
                await asyncio.wait({flushed}, timeout=ANSWER_WITHIN)
                if not flushed.done() or flushed.exception() or not connection.is_connected:
                    return  # they are looked after once there is a connection again
                for channel in before:
                    self._sent.pop(channel, None)
        except Exception as error:  # they are looked after once there is a connection again
            log.debug("replies that may be lost: %r", error)
        finally:
            self._settles = False

    async def _attempt(self, channel: _Channel, handler: _Handler, headers: Dict[str, str],
                       body: bytes) -> Tuple[bytes, Dict[str, str]]:
        has_waited = handler.free.locked()
        async with handler.free:
            if self._stop is not None and self._stop.is_set():  # not begun: another worker is to have it
                return b"", {"Nats-Service-Error-Code": "429", "Nats-Service-Error": "this worker is ending"}
            context = Context(headers, channel, self._executor)
            if has_waited and await ask(context, channel, "started", ANSWER_WITHIN):  # over before it began
                return b"", headers_of(Cancelled("cancelled before it began"))
            if not has_waited:
                await channel.signal("started", b"")
            work = asyncio.create_task(self._work(handler, context, body))
            self._at_work[context] = channel
            if inspect.iscoroutinefunction(handler.function):  # a thread goes on, and has its slot until it ends
                context._on_cancel = work.cancel
            beats = asyncio.create_task(self._beat(context, channel)) if self._heartbeat else None
            try:
                answer, reply = await work
            except asyncio.CancelledError:
                answer, reply = b"", headers_of(Cancelled("cancelled"))
            finally:
                del self._at_work[context]
                if beats:
                    beats.cancel()
            await context.sent()
            if len(answer) + 4096 > channel.connection.max_payload:
                answer, reply = b"", headers_of(Permanent(f"the result has {len(answer)} bytes, more than NATS takes"))
            return answer, reply

    async def _work(self, handler: _Handler, context: Context, body: bytes) -> Tuple[bytes, Dict[str, str]]:
        try:
            payload = read(context, body)
            for hook in self._before:
                await run(hook, (context, payload), self._executor)
            result = await call(handler.function, payload, context, self._executor)
            for hook in self._after:
                await run(hook, (context, result), self._executor)
            return written(result)
        except (Exception, asyncio.CancelledError) as raised:
            error = Cancelled("cancelled") if isinstance(raised, asyncio.CancelledError) else raised
            for hook in self._on_error:
                try:
                    await run(hook, (context, error), self._executor)
                except Exception:
                    log.exception("on_error of run %s", context.run_id)
            if not isinstance(error, (Permanent, Retry, Snooze, Detach, Cancelled)):
                log.warning("run %s, attempt %d", context.run_id, context.attempt, exc_info=error)
            return b"", headers_of(error)

    async def _beat(self, context: Context, channel: _Channel) -> None:
        longest = self._heartbeat or 30
        was_answered, silent_since = False, 0.0
        while context in self._at_work:  # a cancel alone may be lost: nats-py swallows one while it writes
            asked_at = time.monotonic()
            is_over = await ask(context, channel, "heartbeat", longest / 3)
            if is_over is not None:
                was_answered, silent_since = True, 0.0
            else:
                # The connection may be away for a while. A node that has heard a heartbeat takes the job as lost after
                # so long without another; one that may have heard none, only at the deadline.
                silent_since = silent_since or asked_at
                is_silent = time.monotonic() - silent_since >= longest
                is_over = is_silent and (was_answered or is_past(context.deadline))
                if is_over and not context.cancelled:
                    log.warning("run %s: no node answers for %g s: its handler is to stop", context.run_id, longest)
            if is_over:
                context.cancel()
            await asyncio.sleep(longest / 3)

    async def _cancel(self, message: Any) -> None:
        tenant, run_id = message.subject.split(".")[-2:]
        mine = [context for context in self._at_work if (context.tenant, context.run_id) == (tenant, run_id)]
        mine.sort(key=lambda context: (context.round, context.attempt))
        # Of two attempts of a run the older one is meant; if it is both, the newer one's heartbeat says so.
        for context in mine[:-1] or mine:
            context.cancel()


async def drain(service: Any) -> None:
    """Nothing more arrives; what had arrived is with its tasks. The service's own `stop` throws that away."""
    subscriptions = [endpoint._subscription for endpoint in service._endpoints]
    subscriptions += service._subscriptions.values()
    await asyncio.gather(*(one.drain() for one in subscriptions), return_exceptions=True)


async def ask(context: Context, channel: _Channel, word: str, seconds: float) -> Optional[bool]:
    """Sends a signal, and says whether the attempt is over; `None` if no node answers."""
    try:
        answer, _ = await channel.ask(word, b"", seconds)
    except Exception as error:  # its node may be away for a while, and look for the reply once it is back
        log.debug("%s of run %s: %r", word, context.run_id, error)
        return None
    context.deadline = answer.get("longshore-attempt-deadline", context.deadline)
    return answer.get("longshore-cancel") == "true"


def read(context: Context, body: bytes) -> Any:
    """A job's payload: a JSON value, or bytes where its content type is another."""
    if context.content_type.partition(";")[0].strip().lower() != "application/json":
        return body
    try:
        return json.loads(body) if body else None
    except ValueError as error:
        raise Permanent(f"the payload is no JSON: {error}") from None


def written(result: Any) -> Tuple[bytes, Dict[str, str]]:
    """The reply's body and headers for what a handler returned."""
    if isinstance(result, (bytes, bytearray)):
        return bytes(result), {"Content-Type": "application/octet-stream"}
    return b"" if result is None else result_as_json(result), {}
