"""taskiq-nats for `longshore-bench suite`: taskiq_peer.py enqueue|drain JOBS URL

`begin` and `end` as in bullmq.mjs. JetStream with pulls of 64 (its default of 1 is slower); 500 publishes at once.
"""
import asyncio
import sys
from importlib.metadata import version

from taskiq.api import run_receiver_task
from taskiq_nats import PullBasedJetStreamBroker

what, jobs, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
# With a time-out a pull also ends where fewer are left than it asked for.
broker = PullBasedJetStreamBroker(url, pull_consume_batch=64, pull_consume_timeout=0.2)
started = 0
all_started = asyncio.Event()


@broker.task(task_name="noop")
async def noop(pad):
    global started
    started += 1
    if started == 1:
        print("begin", flush=True)
    if started == jobs:
        all_started.set()


async def main():
    if what == "enqueue":
        await broker.startup()
        print("begin", flush=True)
        left = iter(range(jobs))

        async def send():
            for _ in left:
                await noop.kiq("x" * 246)

        await asyncio.gather(*(send() for _ in range(500)))
    else:
        broker.is_worker_process = True
        receiver = asyncio.create_task(run_receiver_task(broker, max_async_tasks=64, run_startup=True))
        waiting = asyncio.create_task(all_started.wait())
        await asyncio.wait([receiver, waiting], return_when=asyncio.FIRST_COMPLETED)
        if receiver.done():
            receiver.result()
        # Acknowledged to the last one.
        while True:
            consumer = await broker.js.consumer_info(broker.stream_name, broker.durable)
            if consumer.num_pending == 0 and consumer.num_ack_pending == 0:
                break
            await asyncio.sleep(0.002)
    print(f"end taskiq-nats {version('taskiq-nats')}", flush=True)
    await asyncio.sleep(60)


asyncio.run(main())
