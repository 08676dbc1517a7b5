"""Runs the jobs of produce.py, one HTML file per job: python3 render.py [folder]

Any number of these may run at once; each job goes to one of them. Needs nats-py (pip install nats-py).
"""
import asyncio
import html
import json
import os
import pathlib
import sys

import nats
import nats.micro

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "reports")
SLOTS = 4  # jobs at once: Longshore sends this process no more


def render(report):
    file = FOLDER / f"{int(report['number'])}.html"
    file.write_text(f"<!doctype html>\n<title>Report</title>\n<h1>{html.escape(report['title'])}</h1>\n")
    return {"file": str(file), "bytes": file.stat().st_size}


async def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    server = os.environ.get("NATS_URL") or "nats://127.0.0.1:4222"
    client = await nats.connect(server, max_reconnect_attempts=-1)  # by default it gives up after two minutes
    running = set()

    async def handle(job):
        try:
            result = await asyncio.to_thread(render, json.loads(job.data))  # a thread: it would block the others
            await job.respond(json.dumps(result).encode())  # a plain reply is success
        except (KeyError, TypeError, ValueError) as error:  # 4xx: no other attempt would help
            await job.respond_error("422", repr(error))
        except Exception as error:  # tried again later; without an answer only after the time limit
            await job.respond_error("500", repr(error))

    async def begin(job):  # a task per job: nats-py waits for each callback before it takes the next message
        task = asyncio.create_task(handle(job))
        running.add(task)
        task.add_done_callback(running.discard)

    metadata = {"longshore.slots": str(SLOTS)}
    service = await nats.micro.add_service(client, name="render", version="1.0.0", metadata=metadata)
    await service.add_endpoint(name="render", subject="longshore.work.*.report.render", handler=begin)
    print(f"rendering into {FOLDER}/; Ctrl-C ends", flush=True)
    await asyncio.Event().wait()


try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
