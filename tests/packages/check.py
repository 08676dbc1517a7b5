"""Checks a helper package against a real node: python check.py README INTERPRETER WORKER

Runs the three programs of the README, a worker, a client and a test, and testing.py or testing.mjs; then checks the
handlers of WORKER (worker.py here says which). A worker says on its first line that it takes jobs. NATS_URL names the
server. Needs the Python package; programs are written into the current folder. tests/packages.rs runs it.
"""
import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from longshore import ApiError, Client
from longshore import Worker as PythonWorker
from longshore._client import addresses

README, INTERPRETER, WORKER = sys.argv[1:]


class Worker:
    started = []

    def __init__(self, notes):
        environment = {**os.environ, "NOTES": notes}
        self.process = subprocess.Popen([INTERPRETER, WORKER], env=environment, stdout=subprocess.PIPE, text=True)
        Worker.started.append(self.process)
        line = self.process.stdout.readline()
        assert "taking jobs of" in line, f"the worker said {line!r}"

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)


def readme_runs():
    blocks = re.findall(r"```(?:python|js)\n(.*?)```", open(README).read(), re.DOTALL)
    ending = os.path.splitext(WORKER)[1]
    for name, block in zip(["readme_worker", "readme_client", "readme_test"], blocks):
        with open(name + ending, "w") as file:
            file.write(block)
    worker = subprocess.Popen([INTERPRETER, "readme_worker" + ending])
    try:
        client = [INTERPRETER, "readme_client" + ending]
        printed = subprocess.run(client, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
        assert "sent" in printed and "ada@example.org" in printed, printed
        subprocess.run([INTERPRETER, "readme_test" + ending], timeout=60, check=True)
        shutil.copy(os.path.join(os.path.dirname(__file__), "testing" + ending), ".")
        subprocess.run([INTERPRETER, "testing" + ending], timeout=60, check=True)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()


def ends_without_a_server():
    """A worker in Python that has no connection yet, and goes on trying, ends at SIGTERM."""
    environment = {**os.environ, "NATS_URL": "127.0.0.1:1", "NOTES": os.devnull}
    process = subprocess.Popen([INTERPRETER, WORKER], env=environment, stdout=subprocess.PIPE, text=True)
    Worker.started.append(process)
    next(line for line in process.stdout if "encountered error" in line)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


async def leaves_its_signals():
    """Once a worker in Python has ended, SIGTERM and SIGINT do in its program what they did before."""
    serving = asyncio.ensure_future(PythonWorker("127.0.0.1:1").serve())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 30)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def steps_while_nobody_can_say(nats):
    """A node that knows nothing of a step for a while is asked until it does."""
    said, refusals = asyncio.Queue(), 5
    await nats.subscribe("check.steps", cb=said.put)
    headers = {"Longshore-Run-Id": "steps", "Longshore-Attempt": "2", "Content-Type": "application/json"}
    await nats.publish("longshore.work.default.t.steps", b"1", reply="check.steps", headers=headers)
    while True:
        heard = await asyncio.wait_for(said.get(), 30)
        word = (heard.headers or {}).get("Longshore-Signal")
        if word is None:
            assert heard.data == b'{"n": 1}' or heard.data == b'{"n":1}', heard
            return
        answer = {"Longshore-Cancel": "false"}
        if word == "step-get" and refusals:
            refusals -= 1
            answer["Nats-Service-Error-Code"] = "503"
        if heard.reply:
            await nats.publish(heard.reply, b"{}", headers=answer)


async def first(events, wanted):
    async for event in events:
        if event["event"] == wanted:
            return event


async def main():
    folder = tempfile.mkdtemp()
    notes = os.path.join(folder, "notes")
    noted = lambda: open(notes).read().split() if os.path.exists(notes) else []
    worker = Worker(notes)
    async with await Client.connect() as client:

        async def ended(type, payload=None, **options):
            job = await client.submit(type, payload, **options)
            return await client.wait(job["run_id"])

        record = await ended("t.echo", {"a": [1, "é"]})
        assert (record["state"], record["result"]) == ("completed", {"a": [1, "é"]}), record
        run = await client.publish("t.echo", "bare", headers={"Longshore-Tags": "x"})
        record = await client.wait(run, float("inf"))
        assert (record["result"], record["tags"]) == ("bare", ["x"]), record
        assert noted().count("before") == 2 and noted().count("after") == 2, noted()

        record = await ended("t.permanent")
        assert (record["state"], record["attempt"], record["error"]["kind"]) == ("dead", 1, "permanent"), record
        assert "no such\u00e9" in record["error"]["message"] and "on_error" in noted(), (record, noted())

        # What no handler should raise ends its attempt alone, and frees its slot.
        for kind in ["stop", "exit", "text", "panic", ""]:
            record = await ended("t.raises" if kind else "t.exits", kind, max_attempts=1)
            assert (record["state"], record["error"]["kind"]) == ("dead", "retryable"), record

        # No other attempt would help, neither of the handler nor of a step.
        for type, payload, problem in [
            ("t.no-json", None, "no JSON"), ("t.no-json", "step", "no JSON"), ("t.large", 512 << 10, "bytes, more"),
            ("t.large", 2 << 20, "bytes, more"),
        ]:
            record = await ended(type, payload)
            assert (record["state"], record["attempt"], record["error"]["kind"]) == ("dead", 1, "permanent"), record
            assert problem in record["error"]["message"], record
        assert (await ended("t.large", (512 << 10) - 2))["state"] == "completed"

        for sends in [client.submit, client.publish]:
            try:
                await sends("t.echo", {"share": float("nan")})
                raise AssertionError("a payload that is no JSON went out")
            except ValueError as error:
                assert "JSON" in str(error), error

        # Bytes are no JSON, with a content type of their own and without one.
        for run in (await ended("t.bytes"))["result"]:
            record = await client.wait(run)
            assert (record["state"], record.get("result_base64")) == ("completed", "/w=="), record

        record = await ended("t.retry")
        assert (record["state"], record["attempt"], record["result"]) == ("completed", 2, 2), record
        record = await ended("t.snooze")
        assert (record["state"], record["attempt"]) == ("completed", 1), record

        # A call ends either attempt: the first one fails, the second one completes.
        record = await ended("t.late")
        assert (record["state"], record["attempt"], record["result"]) == ("completed", 2, {"late": True}), record
        failed = record["attempts"][0]["error"]
        assert (failed["message"], record["progress"]) == ("not yet", {"percent": 40}), record

        following = client.events()
        progress = asyncio.ensure_future(first(following, "progress"))
        await client.connection.flush()
        record = await ended("t.progress")
        assert (await asyncio.wait_for(progress, 30))["progress"] == {"percent": 40}
        assert record["progress"] == {"percent": 40} and record["log"][0]["line"] == "half", record
        await following.aclose()

        record = await ended("t.log")
        lines = [kept["line"] for kept in record["log"]]
        assert lines[0][0] == "a" and lines[1] == "x" * 512 and record["attempt"] == 1, record

        # Two attempts: the first one fails behind the step, the second one finds its result.
        record = await ended("t.steps")
        assert (record["state"], record["attempt"], record["result"]) == ("completed", 2, {"n": 1}), record
        assert noted().count("charged") == 1 and [step["name"] for step in record["steps"]] == ["charge"], record

        steps = asyncio.ensure_future(steps_while_nobody_can_say(client.connection))

        # The worker announces a heartbeat shorter than this takes, and the loop is free: it keeps the job.
        record = await ended("t.long")
        assert (record["state"], record["attempt"]) == ("completed", 1), record

        async def until(word, times=1):
            while noted().count(word) < times:
                await asyncio.sleep(0.02)

        job = await client.submit("t.wait", "cancel")
        await asyncio.wait_for(until("waits"), 30)
        errors = noted().count("on_error")
        await client.cancel(job["run_id"])
        await asyncio.wait_for(until("stopped"), 30)
        # What asks a second time does not interrupt what the first one began.
        await client.connection.publish(f"longshore.cancel.default.{job['run_id']}")
        await asyncio.wait_for(until("on_error", errors + 1), 30)
        job = await client.submit("t.wait")
        await asyncio.wait_for(until("waits", 2), 30)
        # Another node's job waits for its slot, and is not begun once its attempt is over.
        nats, said = client.connection, asyncio.Queue()
        subscription = await nats.subscribe("check.reply", cb=said.put)
        job_headers = {"Longshore-Run-Id": "elsewhere", "Content-Type": "application/json"}
        await nats.publish("longshore.work.default.t.wait", b"1", reply="check.reply", headers=job_headers)
        await nats.flush()
        await client.cancel(job["run_id"])
        begins = await asyncio.wait_for(said.get(), 30)
        begun = begins.headers == {"Longshore-Signal": "started"} and begins.reply
        assert begun, (begins, noted(), await client.get(job["run_id"]))
        await nats.publish(begins.reply, headers={"Longshore-Cancel": "true"})
        answer = await asyncio.wait_for(said.get(), 30)
        assert "before it began" in answer.headers["Nats-Service-Error"], answer
        assert noted().count("waits") == 2, (noted(), await client.get(job["run_id"]))
        # A node that answers no more has lost the job.
        await nats.publish("longshore.work.default.t.wait", b"1", reply="check.reply", headers=job_headers)
        answered = 0  # an answer that comes too late counts for nothing
        while answered < 10 and noted().count("stopped") < 3:
            beat = await asyncio.wait_for(said.get(), 30)
            if beat.headers.get("Longshore-Signal") == "heartbeat":
                await nats.publish(beat.reply, headers={"Longshore-Cancel": "false"})
                answered += 1
        await asyncio.wait_for(until("stopped", 3), 30)
        await subscription.unsubscribe()
        try:
            await client.cancel("no-such-run")
            raise AssertionError("a run that is unknown was cancelled")
        except ApiError as error:
            assert error.code == 404, error

        # Of the waits of a tenant a node takes 1,024.
        job = await client.submit("t.later", delay_ms=3_600_000)
        waits = [asyncio.ensure_future(client.wait(job["run_id"])) for _ in range(1100)]
        await client.request("runs.get", {"run_id": job["run_id"]})
        await client.cancel(job["run_id"])
        assert {record["state"] for record in await asyncio.gather(*waits)} == {"cancelled"}

        await steps

        # SIGTERM: the job that runs is finished, and one that waits for its slot goes back at once.
        holder = await client.submit("t.wait")
        await asyncio.wait_for(until("waits", 4), 30)
        said = asyncio.Queue()
        await nats.subscribe("check.back", cb=said.put)
        await nats.publish("longshore.work.default.t.wait", b"1", reply="check.back", headers=job_headers)
        await nats.flush()
        job = await client.submit("t.long")
        await asyncio.wait_for(until("long", 2), 30)
        worker.kill(signal.SIGTERM)
        answer = await asyncio.wait_for(said.get(), 30)
        assert answer.headers["Nats-Service-Error-Code"] == "429", answer
        await client.cancel(holder["run_id"])
        record = await client.wait(job["run_id"])
        assert (record["state"], record["attempt"]) == ("completed", 1), record
        assert worker.process.wait(30) == 0

        # kill -9 in the middle: another one does the job.
        worker, other = Worker(notes), None
        job = await client.submit("t.long")
        await asyncio.wait_for(until("long", 3), 30)
        other = Worker(notes)
        worker.kill()
        record = await client.wait(job["run_id"])
        assert (record["state"], record["attempt"]) == ("completed", 2), record
        assert record["attempts"][0]["error"]["kind"] == "lease_expired", record
        other.kill(signal.SIGTERM)
        assert other.process.wait(30) == 0
    print("all checked")


full = ["nats://a:4222", "nats://b:5", "tls://u:p@c:4222", "nats://[::1]:4222"]
assert addresses("a, b:5,tls://u:p@c/,nats://[::1]") == full and addresses(full) == full
readme_runs()
try:
    if WORKER.endswith(".py"):
        ends_without_a_server()
        asyncio.run(leaves_its_signals())
    asyncio.run(main())
finally:
    for process in Worker.started:
        process.kill()
