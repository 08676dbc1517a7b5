#!/bin/sh
# Makes what docker-compose.yml needs once: a certificate authority and the servers' certificate in tls/, and a password for
# each user in the file .env. Both are secrets. What is there already stays.
#
#   deploy/compose/set-up.sh [FOLDER OF tls] [FILE OF PASSWORDS]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tls=${1:-$here/tls}
passwords=${2:-$here/../../.env}
umask 077
if [ ! -e "$tls/server.pem" ]; then
    mkdir -p "$tls"
    cd "$tls"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=Longshore's servers" \
        -keyout ca.key -out ca.pem 2>/dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=nats -keyout server.key -out server.csr 2>/dev/null
    printf 'subjectAltName=DNS:nats-1,DNS:nats-2,DNS:nats-3,DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' > server.ext
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 -extfile server.ext -out server.pem 2>/dev/null
    rm server.csr server.ext ca.srl
    # The nodes' user reads the one file that is no secret.
    chmod 755 .
    chmod 644 ca.pem server.pem
fi
if [ ! -e "$passwords" ]; then
    for user in NODE GATEWAY OPERATOR OBSERVER PRODUCER HANDLER; do
        # A letter first, as nats-server reads a number otherwise.
        printf '%s_PASSWORD=p%s\n' "$user" "$(openssl rand -hex 24)"
    done > "$passwords"
fi
