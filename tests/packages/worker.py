"""The handlers that check.py asks for, by the Python package."""
import asyncio
import logging
import os
import sys
import time

from longshore import Client, Detach, Permanent, Retry, Snooze, Worker

worker = Worker(heartbeat=float(os.environ.get("HEARTBEAT", 6)))
snoozed = set()
elsewhere = set()


def note(word):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(f"{word}\n")


@worker.handler("t.echo", slots=2)
def echo(payload):
    return payload


@worker.handler("t.permanent")
async def permanent(payload, ctx):
    raise Permanent("no suché\nat all")


@worker.handler("t.raises")
def raises(payload, ctx):
    if payload == "exit":
        sys.exit("the end")
    if payload == "panic":
        raise BaseException("such as PyO3 has")
    raise {"stop": StopIteration, "text": ValueError}[payload]("no text: \ud800")


@worker.handler("t.exits")
async def exits(payload, ctx):
    sys.exit("the end")


@worker.handler("t.no-json")
async def no_json(payload, ctx):
    result = {"share": float("nan")}
    return await ctx.step("share", lambda: result) if payload == "step" else result


@worker.handler("t.large")
def large(payload, ctx):
    ctx.step("large", lambda: "x" * payload)


@worker.handler("t.bytes")
async def publishes(payload, ctx):
    """Sends bytes in both ways; returns the runs."""
    async with await Client.connect() as client:
        job = await client.submit("t.echo", b"\xff", headers={"content-type": "image/png"})
        return [await client.publish("t.echo", b"\xff"), job["run_id"]]


@worker.handler("t.retry")
async def retry(payload, ctx):
    if ctx.attempt == 1:
        raise Retry(0.2, "not yet")
    return ctx.attempt


@worker.handler("t.snooze")
async def snooze(payload, ctx):
    if ctx.run_id not in snoozed:
        snoozed.add(ctx.run_id)
        raise Snooze(0.2)


async def ends_late(ctx):
    """What the process would do to which the work was handed."""
    attempt = {"run_id": ctx.run_id, "token": ctx.token}
    async with await Client.connect() as client:
        if ctx.attempt == 1:
            await client.request("runs.fail", {**attempt, "error": "not yet", "retry_after_ms": 200})
        else:
            await client.request("runs.progress", {**attempt, "progress": {"percent": 40}})
            await client.request("runs.complete", {**attempt, "result": {"late": True}})


@worker.handler("t.late")
async def late(payload, ctx):
    task = asyncio.create_task(ends_late(ctx))
    elsewhere.add(task)
    task.add_done_callback(elsewhere.discard)
    raise Detach("1h")


@worker.handler("t.progress")
def progress(payload, ctx):
    ctx.progress(40)
    ctx.log("half")


@worker.handler("t.log")
def logs(payload, ctx):
    ctx.log("a\ud800")
    ctx.log("x" * (2 << 20))


@worker.handler("t.steps")
async def steps(payload, ctx):
    def charge():
        assert ctx.step_key("charge") == f"{ctx.run_id}/charge#1"
        note("charged")
        return {"n": 1}

    result = await ctx.step("charge", charge)
    if ctx.attempt == 1:
        raise Retry(0.2)
    return result


@worker.handler("t.long")
def long(payload, ctx):
    note("long")
    time.sleep(7)


@worker.handler("t.wait")
async def wait(payload, ctx):
    note("waits")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("stopped")
        raise


@worker.handler("t.python", slots=4)
@worker.handler("t.shared", slots=4)
def language(payload, ctx):
    note(f"python {ctx.run_id}")
    return "python"


@worker.handler("t.python.away", slots=4)
async def away(payload, ctx):
    note("away")
    while not os.path.exists(payload["go"]):
        await asyncio.sleep(0.02)
    note("ended")
    return "x" * 700_000


@worker.before
def before(ctx, payload):
    if ctx.type == "t.echo":
        note("before")


@worker.after
async def after(ctx, result):
    if ctx.type == "t.echo":
        note("after")


@worker.on_error
async def on_error(ctx, error):
    await asyncio.sleep(0.2)
    note("on_error")


logging.basicConfig(level=logging.INFO, stream=sys.stdout)
worker.run()
