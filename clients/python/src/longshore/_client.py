"""Submits jobs and follows their runs."""
from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from typing import Any, AsyncIterator, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import urlsplit

import nats
import nats.errors
from nats.aio.client import Client as Nats

from ._context import as_json

WAIT_MILLISECONDS = 10_000
"""How long one request waits: the node that has it may die."""
WAITS = {"work.next": ("wait_ms", 30_000), "runs.wait": ("timeout_ms", 30_000), "runs.why": ("timeout_ms", 10_000)}
"""How long an endpoint waits before it answers: the field that says it, and the milliseconds without that."""
ENDED = ("completed", "dead", "cancelled", "expired", "duplicate", "discarded")


class ApiError(Exception):
    """A node refused a request: `code` as in HTTP, `error` a word, and what is wrong."""

    def __init__(self, code: int, error: str, message: str) -> None:
        super().__init__(f"{code} {error}: {message}")
        self.code, self.error, self.message = code, error, message


Servers = Union[str, Sequence[str], None]
"""Addresses in a list, or in text with commas."""


def addresses(servers: Servers) -> List[str]:
    """Addresses of servers, of a list or of text with commas; else those of NATS_URL."""
    given = servers or os.environ.get("NATS_URL") or "nats://127.0.0.1:4222"
    return [_full(address.strip()) for address in (given.split(",") if isinstance(given, str) else given)]


def _full(address: str) -> str:
    """With a scheme and a port, which nats-py adds to none of several addresses."""
    full = address if "://" in address else f"nats://{address}"
    uri = urlsplit(full)
    return f"{full.rstrip('/')}:4222" if uri.scheme in ("nats", "tls") and uri.port is None else full


def for_payload(headers: Optional[Mapping[str, str]], payload: Any) -> Dict[str, str]:
    """A job's headers: bytes need a content type, as without one they are read as JSON."""
    own = dict(headers or {})
    if not isinstance(payload, bytes) or any(name.lower() == "content-type" for name in own):
        return own
    return {"Content-Type": "application/octet-stream", **own}


class Client:
    """A connection for submitting jobs: `async with await Client.connect() as client`."""

    def __init__(self, connection: Nats, *, tenant: str = "default", namespace: str = "longshore") -> None:
        self.connection, self.tenant, self.namespace = connection, tenant, namespace

    @classmethod
    async def connect(cls, servers: Servers = None, *, tenant: str = "default", namespace: str = "longshore",
                      **options: Any) -> "Client":
        """Connects to `servers`, or else NATS_URL; further options are those of `nats.connect`."""
        return cls(await nats.connect(addresses(servers), **options), tenant=tenant, namespace=namespace)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection."""
        await self.connection.drain()

    async def submit(self, type: str, payload: Any = None, **options: Any) -> Dict[str, Any]:
        """Submits a job: `{"run_id", "state", "deduplicated"}`, once it is durable.

        The payload is JSON, or bytes as they are (`application/octet-stream`, unless a header names their type).
        Options are the fields of `submit` in the contract, such as `queue`, `priority`, `idempotency_key`, `delay_ms`,
        `tags`.
        """
        if isinstance(payload, bytes):
            options["headers"] = for_payload(options.get("headers"), payload)
            options["payload_base64"] = base64.b64encode(payload).decode()
        elif "payload_base64" not in options:
            options["payload"] = payload
        return await self.request("submit", {"type": type, **options})

    async def publish(self, type: str, payload: Any = None, *, queue: str = "main", priority: int = 5,
                      headers: Optional[Mapping[str, str]] = None) -> str:
        """Publishes a job to JetStream, without asking a node, and returns its run id once it is durable.

        The payload is JSON, or bytes, as for `submit`. Options are headers: `{"Longshore-Delay": "5m"}`.
        """
        subject = f"{self.namespace}.jobs.{self.tenant}.{queue}.p{priority}.{type}"
        body = payload if isinstance(payload, bytes) else as_json(payload)
        sent = for_payload(headers, payload)
        acknowledged = await self.connection.jetstream().publish(subject, body, headers=sent)
        own = {name.lower(): text for name, text in (headers or {}).items()}.get("longshore-run-id")
        return own or f"{queue}-p{priority}-{acknowledged.seq}"

    async def get(self, run_id: str) -> Dict[str, Any]:
        """The run's record."""
        return await self.request("runs.get", {"run_id": run_id})

    async def wait(self, run_id: str, timeout: float = 60) -> Dict[str, Any]:
        """The run's record once it has ended, however; `asyncio.TimeoutError` after so many seconds.

        A node that dies meanwhile is no error: another one is asked.
        """
        until = time.monotonic() + timeout
        while True:
            if (left := until - time.monotonic()) <= 0:
                raise asyncio.TimeoutError(f"run {run_id} has not ended within {timeout} s")
            milliseconds = max(1, int(min(WAIT_MILLISECONDS, left * 1000)))
            try:
                record = await self.request("runs.wait", {"run_id": run_id, "timeout_ms": milliseconds})
                if record["state"] in ENDED:
                    return record
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError, ApiError) as error:
                # Not found: published a moment ago under an id of its own, it is known once it starts. 429: a node has
                # so many waits of a tenant.
                if isinstance(error, ApiError) and error.code not in (429, 503) and error.error != "not_found":
                    raise
                await asyncio.sleep(min(0.2, left))

    async def cancel(self, run_id: str) -> Dict[str, Any]:
        """Cancels a run that has not ended, and returns its record."""
        return await self.request("runs.cancel", {"run_id": run_id})

    async def events(self, run_id: str = "*") -> AsyncIterator[Dict[str, Any]]:
        """Live events of one run, or of all; those of before the first `__anext__` are not among them."""
        subject = f"{self.namespace}.events.{self.tenant}.*.*.{run_id}.>"
        subscription = await self.connection.subscribe(subject)
        try:
            async for message in subscription.messages:
                yield json.loads(message.data)
        finally:
            if not self.connection.is_closed and not self.connection.is_draining:
                await subscription.unsubscribe()

    async def request(self, endpoint: str, body: Mapping[str, Any]) -> Dict[str, Any]:
        """Asks any endpoint of the API."""
        name, usual = WAITS.get(endpoint, ("", 10_000))  # queues.pause takes up to 12 s
        given = body.get(name)
        seconds = 5 + (usual if given is None else given) / 1000
        subject = f"{self.namespace}.api.{self.tenant}.{endpoint}"
        answer = await self.connection.request(subject, as_json(body), timeout=seconds)
        content = json.loads(answer.data)
        if answer.headers and "Nats-Service-Error-Code" in answer.headers:
            raise ApiError(content["code"], content["error"], content["message"])
        return content
