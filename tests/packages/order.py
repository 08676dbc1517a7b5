"""The job of five steps that tests/steps.rs interrupts between them, by the Python package."""
import asyncio
import logging
import os
import sys
import uuid

from longshore import Worker

worker = Worker(heartbeat=1.5)


def note(*words):
    with open(os.environ["NOTES"], "a") as notes:
        notes.write(" ".join(words) + "\n")


async def comes_to(step, place, job, ctx):
    """Waits where the job is to be interrupted, until that has happened."""
    if (step, place) == (job["step"], job["place"]) and not os.path.exists(job["go"]):
        note("waits", ctx.run_id)
        while not os.path.exists(job["go"]):
            await asyncio.sleep(0.01)


@worker.handler("order", slots=50)
async def order(job, ctx):
    note("begins", ctx.run_id)
    results = []
    for step in ["reserve", "charge", "invoice", "ship", "mail"]:

        async def work():
            done = uuid.uuid4().hex
            note("did", ctx.run_id, step, done)
            await comes_to(step, "done", job, ctx)
            return done

        results.append(await ctx.step(step, work))
        note("stored", ctx.run_id, step, results[-1])
        await comes_to(step, "stored", job, ctx)
    return results


logging.basicConfig(level=logging.INFO, stream=sys.stdout)
worker.run()
