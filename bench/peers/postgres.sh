#!/bin/sh
# A PostgreSQL of the suite's own: postgres.sh DIR PORT. It becomes the server, so that its process id is the server's.
# Commits are not waited for to reach the disk, as in the other stores of the suite.
set -eu
dir=$1 port=$2
# Debian has the server's programs beside its path.
for bin in /usr/lib/postgresql/*/bin; do PATH=$PATH:$bin; done
as=
if [ "$(id -u)" = 0 ]; then
    # The server refuses to be root.
    chmod 711 "$dir"
    install -d -o postgres "$dir/data"
    as="setpriv --reuid postgres --regid postgres --clear-groups"
fi
cd "$dir"
$as initdb --pgdata "$dir/data" --username postgres --auth trust --no-sync >/dev/null
exec $as postgres -D "$dir/data" -p "$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
    -c synchronous_commit=off -c shared_buffers=256MB
