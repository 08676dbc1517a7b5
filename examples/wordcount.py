"""Counts the words of text files, one job per file: python3 wordcount.py

Counts as wc -w does in a UTF-8 locale. Reads the files itself, so it runs where they are. Needs nats-py.
"""
import asyncio
import json
import os
import pathlib

import nats


async def main():
    client = await nats.connect(os.environ.get("NATS_URL") or "nats://127.0.0.1:4222")

    async def handle(job):
        try:
            text = pathlib.Path(json.loads(job.data)["path"]).read_text(encoding="utf-8")
            await job.respond(json.dumps({"words": len(text.split())}).encode())
        except (OSError, KeyError, TypeError, ValueError) as error:
            refusal = {"Nats-Service-Error-Code": "422", "Nats-Service-Error": f"{type(error).__name__}: {error}"}
            await client.publish(job.reply, b"", headers=refusal)

    await client.subscribe("longshore.work.*.wordcount", queue="wordcount", cb=handle)
    print("counting; Ctrl-C ends", flush=True)
    await asyncio.Event().wait()


try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
