"""A shop: orders are charged, get an invoice and an e-mail, though everything fails now and then.

    python3 examples/shop/shop.py [ORDERS]

Starts the services that the shop calls, a node with a server of its own, and the worker that writes invoices; submits
the orders, kills the worker twice meanwhile, and counts in the end. With NATS_URL set, the nodes are there already.
"""
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
import venv
from collections import Counter, deque
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CHARGE_PORT, MAIL_PORT = (int(os.environ.get(name, port)) for name, port in (("SHOP_CHARGE_PORT", 9000), ("SHOP_MAIL_PORT", 9025)))


def with_the_package():
    """Goes on with an interpreter that has the Python package."""
    try:
        import longshore  # noqa: F401
    except ImportError:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longshore" / "shop"
        python = folder / "bin" / "python"
        if not python.exists():
            venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", ROOT / "clients/python"], check=True)
        os.execv(python, [str(python), *sys.argv])


def node(folder):
    """Starts a node with a server of its own; returns once it is ready."""
    settings = (HERE / "longshore.toml").read_text().replace(":9000/", f":{CHARGE_PORT}/").replace(":9025", f":{MAIL_PORT}")
    (folder / "longshore.toml").write_text(settings)
    longshore = os.environ.get("LONGSHORE", "").split() or ["cargo", "run", "--quiet", "--manifest-path", ROOT / "Cargo.toml", "--"]
    process = subprocess.Popen([*longshore, "dev", "--dir", folder / "data", "--config", folder / "longshore.toml"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if found := re.search(r"nats://\S+", line):
            os.environ["NATS_URL"] = found.group()
        print(line, end="")
        if "Ctrl-C" in line:
            # A line for each event follows: a pipe that nobody reads would be full soon.
            threading.Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
            return process
    sys.exit("the node does not start")


async def orders(count, start_worker):
    import nats.errors
    from longshore import Client

    follows = {"type": "shop.invoice", "then": {"type": "shop.mail"}}
    async with await Client.connect() as client:

        async def order(number):
            payload = {"order": number, "cents": 100 + number, "mail": f"customer{number}@shop.example"}
            while True:
                try:
                    run = await client.submit("shop.charge", payload, idempotency_key=f"order {number}", then=follows)
                    break
                except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                    print("no answer, submitted again:", number, flush=True)  # the key makes it one job
            print("submitted", number, flush=True)
            return await end(client, run["run_id"])

        ended = asyncio.gather(*(order(number) for number in range(1, count + 1)))
        worker = start_worker()
        for _ in range(2):
            done = await asyncio.wait([ended], timeout=2)
            if done[0]:
                break
            worker.kill()
            worker = start_worker()
            print("the worker was killed", flush=True)
        ended = await ended
        worker.terminate()
        worker.wait()
        return ended


async def end(client, run_id):
    """The record of the last run of an order's chain, or of the one that failed for good."""
    while True:
        record = await client.wait(run_id, timeout=240)
        if record["state"] != "completed" or "then" not in record:
            return record
        run_id = f"{run_id}-then"


def judge(count, ended, folder):
    import services

    states = Counter((record["type"], record["state"]) for record in ended)
    charged = Counter(charge["order"] for charge in services.charges.values())
    invoices = {path.stem: path.read_text().split()[0] for path in folder.glob("*.txt")}
    mails = Counter(message_id for message_id, _ in services.mails)
    doubles = Counter({message_id: times - 1 for message_id, times in mails.items() if times > 1})
    written = {number: invoice for _, text in services.mails for invoice, number in re.findall(r"(INV-\w+) for order (\d+)", text)}
    print(f"orders {count}; ended: {dict(states)}")
    print(f"charged {len(charged)}, more than once {sum(times > 1 for times in charged.values())}")
    print(f"invoices {len(invoices)}")
    print(f"e-mails {len(mails)}, sent again {sum(doubles.values())}, acknowledgements lost {len(services.lost)}")
    fine = (
        states == {("shop.mail", "completed"): count}
        and len(charged) == len(invoices) == len(mails) == count
        and set(charged.values()) == {1}
        and written == invoices
    )
    print("all is well" if fine else "something is wrong")
    return 0 if fine else 1


def main():
    with_the_package()
    sys.path.insert(0, str(HERE))
    import services

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    folder = Path(tempfile.mkdtemp(prefix="shop-"))
    invoices = folder / "invoices"
    invoices.mkdir()
    services.start(CHARGE_PORT, MAIL_PORT)
    process = None if os.environ.get("NATS_URL") else node(folder)
    environment = {**os.environ, "INVOICES": str(invoices)}
    try:
        start = lambda: subprocess.Popen([sys.executable, HERE / "invoice.py"], env=environment)
        return judge(count, asyncio.run(orders(count, start)), invoices)
    finally:
        if process:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
