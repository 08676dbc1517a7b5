"""Publishes jobs that count the words of a folder's text files: python3 wordcount_produce.py FOLDER [suffix, such as .md]

Publishes one job per file, waits for every run's end, and prints as wc -w does: words, path. Needs wordcount.py to run.
"""
import asyncio
import json
import os
import pathlib
import sys

import nats


async def main(folder, suffix):
    client = await nats.connect(os.environ.get("NATS_URL") or "nats://127.0.0.1:4222")
    jetstream = client.jetstream()

    async def count(path):
        job = json.dumps({"path": str(path.resolve())}).encode()
        ack = await jetstream.publish("longshore.jobs.default.main.p5.wordcount", job)
        wait = json.dumps({"run_id": f"main-p5-{ack.seq}", "timeout_ms": 60_000}).encode()
        answer = await client.request("longshore.api.default.runs.wait", wait, timeout=65)
        return path, json.loads(answer.data)

    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(suffix))
    failed = 0
    for path, run in await asyncio.gather(*(count(path) for path in paths)):
        if run.get("state") == "completed":
            print(run["result"]["words"], path)
        else:
            failed += 1
            print(f"{path}: {run.get('error') or run}", file=sys.stderr)
    await client.close()
    return 1 if failed else 0


if len(sys.argv) < 2:
    sys.exit(__doc__)
sys.exit(asyncio.run(main(pathlib.Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")))
