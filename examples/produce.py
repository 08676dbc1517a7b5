"""Publishes jobs with a plain NATS client: python3 produce.py [how many]

Needs nats-py (pip install nats-py). NATS_URL names the server, nats://127.0.0.1:4222 if it is not set.
"""
import asyncio
import json
import os
import sys

import nats

SUBJECT = "longshore.jobs.default.main.p5.report.render"  # tenant, queue, priority, type


async def main(count):
    client = await nats.connect(os.environ.get("NATS_URL") or "nats://127.0.0.1:4222")
    jetstream = client.jetstream()

    async def publish(number):
        job = {"number": number, "title": f"Report {number} of {count}"}
        return await jetstream.publish(SUBJECT, json.dumps(job).encode())  # returns once the job is durable

    acks = []
    for first in range(1, count + 1, 100):  # a hundred on their way at once
        acks += await asyncio.gather(*(publish(number) for number in range(first, min(first + 100, count + 1))))
    sequences = [ack.seq for ack in acks]
    print(f"published {count} jobs, runs main-p5-{min(sequences)} to main-p5-{max(sequences)}")
    await client.close()


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
