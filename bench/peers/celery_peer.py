"""Celery for `longshore-bench suite`: celery_peer.py enqueue|drain JOBS URL

`begin` and `end` as in bullmq.mjs. 64 threads, late acknowledgement, so that a killed worker loses nothing; results are
ignored. It has no bulk call: 16 threads enqueue.
"""
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import celery

what, jobs, url = sys.argv[1], int(sys.argv[2]), sys.argv[3]
app = celery.Celery("bench", broker=url)
app.conf.update(task_ignore_result=True, task_acks_late=True, worker_redirect_stdouts=False)
started = 0
lock = threading.Lock()


def end():
    print(f"end Celery {celery.__version__}", flush=True)
    time.sleep(60)


def watch():
    with app.connection_for_read() as connection:
        redis = connection.default_channel.client
        while redis.llen("celery") or redis.hlen("unacked"):
            time.sleep(0.002)
    end()


@app.task(name="noop")
def noop(pad):
    global started
    with lock:
        started += 1
        if started == 1:
            print("begin", flush=True)
        if started == jobs:
            threading.Thread(target=watch).start()


if what == "enqueue":
    noop.delay("x" * 246)
    app.control.purge()
    with ThreadPoolExecutor(16) as pool:
        print("begin", flush=True)
        for _ in pool.map(lambda _: noop.delay("x" * 246), range(jobs)):
            pass
    end()
app.Worker(pool="threads", concurrency=64, loglevel="ERROR", without_gossip=True, without_mingle=True).start()
