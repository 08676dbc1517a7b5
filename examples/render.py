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

FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "reports")


def render(report):
    file = FOLDER / f"{int(report['number'])}.html"
    file.write_text(f"<!doctype html>\n<title>Report</title>\n<h1>{html.escape(report['title'])}</h1>\n")
    return {"file": str(file), "bytes": file.stat().st_size}


async def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    client = await nats.connect(os.environ.get("NATS_URL") or "nats://127.0.0.1:4222")

    async def handle(job):
        try:
            await job.respond(json.dumps(render(json.loads(job.data))).encode())  # a plain reply is success
        except (KeyError, TypeError, ValueError) as error:  # 4xx: no other attempt would help
            refusal = {"Nats-Service-Error-Code": "422", "Nats-Service-Error": f"{type(error).__name__}: {error}"}
            await client.publish(job.reply, b"", headers=refusal)

    await client.subscribe("longshore.work.*.report.render", queue="render", cb=handle)
    print(f"rendering into {FOLDER}/; Ctrl-C ends", flush=True)
    await asyncio.Event().wait()


try:
    asyncio.run(main())
except KeyboardInterrupt:
    pass
