"""Clients that submit over HTTP and repeat what was not answered: retries.py CLIENTS SUBMITS ADDRESS…

Each client goes through a simple proxy of its own kind: the addresses in turn, 502 where nobody listens or the answer
breaks off. Prints one line of JSON: how often each status came, and the run of each key.
"""
import http.client
import json
import sys
import threading
import time
from collections import Counter

CLIENTS, SUBMITS = int(sys.argv[1]), int(sys.argv[2])
NODES = sys.argv[3:]
statuses, runs, lock = Counter(), {}, threading.Lock()


class Proxy:
    """Passes a request on to the next node, over connections that are kept."""

    def __init__(self, first):
        self.turn, self.kept = first, {}

    def post(self, body, headers):
        self.turn += 1
        node = NODES[self.turn % len(NODES)]
        connection = self.kept.pop(node, None) or http.client.HTTPConnection(node, timeout=30)
        try:
            connection.request("POST", "/v1/jobs", body, headers)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return 502, b""
        self.kept[node] = connection
        return answer.status, said


def client(number):
    proxy = Proxy(number)
    for nth in range(SUBMITS):
        key = f"{number}-{nth}"
        body = json.dumps({"type": "count", "payload": key})
        headers = {"Content-Type": "application/json", "Idempotency-Key": f'"{key}"'}
        wait = 0.05
        while True:
            status, said = proxy.post(body, headers)
            with lock:
                statuses[status] += 1
                if status in (200, 201):
                    runs.setdefault(key, set()).add(json.loads(said)["run_id"])
            if status in (200, 201):
                break
            if status not in (502, 503):
                sys.exit(f"{key}: {status} {said!r}")
            time.sleep(wait)
            wait = min(wait * 2, 1)


threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
for thread in threads:
    thread.start()
print("begun", flush=True)
for thread in threads:
    thread.join()
print(json.dumps({"statuses": statuses, "runs": {key: sorted(all) for key, all in runs.items()}}))
