"""Two services as they are in the world: now and then they fail, also after they have done their work."""
import json
import random
import re
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
charges = {}
"""What was charged, by idempotency key."""
mails = []
"""Message-ID and text of each e-mail that was taken."""
lost = []
"""Message-IDs of those whose acknowledgement was lost."""


class Charge(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        luck = random.random()
        if luck < 0.2:
            return self.answer(503, {"error": "try again"})
        key = self.headers["Idempotency-Key"]
        with lock:
            charged = charges.setdefault(key, {**order, "charge": f"ch_{len(charges) + 1}"})
        if luck < 0.3:  # charged, but nobody hears of it
            self.close_connection = True
            return None
        return self.answer(200, charged)

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class Mail(socketserver.StreamRequestHandler):
    def handle(self):
        self.say("220 mail.shop.example")
        while line := self.rfile.readline().decode().strip():
            word = line.split(" ")[0].upper()
            if word == "RCPT" and random.random() < 0.1:
                self.say("451 busy")
            elif word == "DATA":
                self.say("354 go on")
                if not self.take():
                    return
            elif word == "QUIT":
                return self.say("221 bye")
            else:
                self.say("250 fine")

    def take(self):
        text = ""
        while (line := self.rfile.readline().decode()) != ".\r\n":
            if not line:
                return False
            text += line
        found = re.search(r"^Message-ID: *(\S+)", text, re.MULTILINE | re.IGNORECASE)
        with lock:
            mails.append((found.group(1), text))
            if random.random() < 0.03:  # taken, but nobody hears of it
                lost.append(found.group(1))
                return False
        self.say("250 taken")
        return True

    def say(self, text):
        self.wfile.write(f"{text}\r\n".encode())


class MailServer(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads, request_queue_size = True, True, 64


class ChargeServer(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 64


def start(charge_port, mail_port):
    for server in (ChargeServer(("127.0.0.1", charge_port), Charge), MailServer(("127.0.0.1", mail_port), Mail)):
        threading.Thread(target=server.serve_forever, daemon=True).start()
