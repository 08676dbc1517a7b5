#!/bin/sh
# Installs the peers of `longshore-bench suite` into a folder: bench/peers/setup.sh DIR
# Their servers are Debian's (`apt-get install redis-server postgresql`, or as your system has them); Node.js, Python
# and Cargo are expected on PATH. What is missing is skipped here and in the suite, which says so.
set -eu
dir=${1:?usage: setup.sh DIR}
mkdir -p "$dir"
if command -v npm >/dev/null; then
    npm install --silent --no-audit --no-fund --prefix "$dir" bullmq@6 ioredis@5 graphile-worker@0.17
else
    echo "no npm: BullMQ and Graphile Worker are skipped; install Node.js" >&2
fi
if command -v python3 >/dev/null; then
    python3 -m venv "$dir/py"
    "$dir/py/bin/pip" install --quiet 'celery[redis]>=5.7,<6' 'taskiq-nats>=0.7,<0.8' nats-py
else
    echo "no python3: Celery, taskiq and the remote handler in Python are skipped" >&2
fi
if command -v cargo >/dev/null; then
    CARGO_TARGET_DIR="$dir/build" cargo install --quiet --path "$(dirname "$0")/apalis" --root "$dir"
else
    echo "no cargo: apalis is skipped" >&2
fi
for server in redis-server psql; do
    command -v "$server" >/dev/null || echo "no $server on PATH: its peers are skipped" >&2
done
