"""The handler in Python of `longshore-bench remote`: python bench/remote.py [--package]

Replies to requests to `bare.measured`, and does jobs of the type `measured`: by a plain subscription, or as a handler of
the package longshore-client.
"""
import asyncio
import os
import sys

import nats


async def main():
    connection = await nats.connect(os.environ["NATS_URL"])

    async def reply(message):
        await message.respond(message.data)

    await connection.subscribe("bare.measured", "handlers", cb=reply)
    if "--package" in sys.argv:
        from longshore import Worker

        worker = Worker()
        worker.handler("measured", slots=640)(measured)
        await worker.serve()
    else:
        await connection.subscribe("longshore.work.*.measured", "handlers", cb=reply)
        await asyncio.Event().wait()


async def measured(payload):
    return payload


asyncio.run(main())
