"""The Python package without a server: what `testing.run` gives a handler, and says of it, is what a worker would."""
import asyncio

from longshore import Worker, testing
from longshore._context import Context


async def takes_a_step(payload, ctx):
    result = await ctx.step("pair", lambda: {1: ("x", "y")})
    return result, 1


first = testing.run(takes_a_step)
assert first.result == [{"1": ["x", "y"]}, 1], first.result
assert testing.run(takes_a_step, steps=first.steps).result == first.result
assert testing.run(lambda payload: bytearray(b"\xff")).result == b"\xff"
assert testing.run(lambda payload: None).result is None

seen = lambda payload, ctx: [repr(payload), ctx.content_type]
assert testing.run(seen, b"\xff").result == [r"b'\xff'", "application/octet-stream"]
assert testing.run(seen, b"[1]", headers={"content-type": "application/json"}).result == ["[1]", "application/json"]
assert testing.run(seen, {"a": (1,)}).result == ["{'a': [1]}", "application/json"]

# A decorator's own function takes what comes, and a keyword is no second argument.
assert testing.run(lambda *given: len(given)).result == 2
assert testing.run(lambda payload, *, name="own": [payload, name], 1).result == [1, "own"]

try:
    testing.run(lambda payload, ctx: ctx.progress(float("nan")))
    raise AssertionError("progress that is no JSON went out")
except ValueError as error:
    assert "JSON" in str(error), error


class Away:
    async def signal(self, word, body):
        raise ConnectionError("more to send than is kept")


async def goes_on():
    context = Context({}, Away())
    context.progress(1)
    await asyncio.get_running_loop().run_in_executor(None, context.log, "a line")
    await context.sent()


asyncio.run(goes_on())

worker = Worker()
worker.handler("t.twice")(seen)
try:
    worker.handler("t.twice")
    raise AssertionError("two handlers of one type share its jobs")
except ValueError as error:
    assert "t.twice" in str(error), error
