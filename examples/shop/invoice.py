"""Writes invoices: what is done is a step, so that it is not done again by a later attempt."""
import os
import random
import uuid
from pathlib import Path

from longshore import Retry, Worker

folder = Path(os.environ["INVOICES"])
worker = Worker(heartbeat=3)


@worker.handler("shop.invoice", slots=8)
def invoice(paid, ctx):
    order = paid["body"]
    number = ctx.step("number", lambda: f"INV-{uuid.uuid4().hex[:8]}")
    ctx.step("write", lambda: write(order, number))
    if random.random() < 0.2:
        raise Retry(0.2, "the printer is out of paper")
    text = f"{number} for order {order['order']}: {order['cents']} cents, {order['charge']}"
    return {"to": [order["mail"]], "subject": f"Your order {order['order']}", "text": text}


def write(order, number):
    (folder / f"{order['order']}.txt").write_text(f"{number} {order['cents']} {order['charge']}\n")


worker.run()
