"""Counts the words of text files, one job per file: python3 wordcount.py

Counts as wc -w does in a UTF-8 locale. Reads the files itself, so it runs where they are. Needs nats-py.
"""
import asyncio
import json
import os
import pathlib

import nats
import nats.micro

SLOTS = 4  # jobs at once: Longshore sends this process no more


def count(path):
    return {"words": len(pathlib.Path(path).read_text(encoding="utf-8").split())}


async def main():
    server = os.environ.get("NATS_URL") or "nats://127.0.0.1:4222"
    client = await nats.connect(server, max_reconnect_attempts=-1)  # by default it gives up after two minutes
    running = set()

    async def handle(job):
        try:
            result = await asyncio.to_thread(count, json.loads(job.data)["path"])
            await job.respond(json.dumps(result).encode())
        except (OSError, KeyError, TypeError, ValueError) as error:  # 4xx: no other attempt would help
            await job.respond_error("422", repr(error))
        except Exception as error:
            await job.respond_error("500", repr(error))

    async def begin(job):
        task = asyncio.create_task(handle(job))
        running.add(task)
        task.add_done_callback(running.discard)

    metadata = {"longshore.slots": str(SLOTS)}
    service = await nats.micro.add_service(client, name="wordcount", version="1.0.0", metadata=metadata)
    await service.add_endpoint(name="wordcount", subject="longshore.work.*.wordcount", handler=begin)
    print("counting; Ctrl-C ends", flush=True)
    await asyncio.Event().wait()


try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
