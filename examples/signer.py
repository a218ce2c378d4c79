#!/usr/bin/env python3
"""A signer for muster's console: keeps Ed25519 keys away from it, and signs over a Unix socket.

    openssl genpkey -algorithm ed25519 -out signing.pem
    signer.py /run/muster-signer/socket signing.pem [next.pem]

The console's configuration: [authority] signer = "unix:/run/muster-signer/socket"
The user that runs this owns the keys; the folder of the socket is open to the console's user alone.
"""

import base64
import hashlib
import json
import os
import socketserver
import subprocess
import sys
import tempfile


def openssl(*args):
    return subprocess.run(["openssl", *args], check=True, capture_output=True).stdout


class Key:
    def __init__(self, path):
        self.path = path
        # An Ed25519 key in DER ends with its 32 bytes.
        self.public = openssl("pkey", "-in", path, "-pubout", "-outform", "DER")[-32:]
        self.id = hashlib.sha256(self.public).hexdigest()[:16]

    def sign(self, data):
        # openssl has to know how long it is, so it takes a file. Nothing in it is secret.
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            return openssl("pkeyutl", "-sign", "-inkey", self.path, "-rawin", "-in", file.name)


def answer(request):
    if request.get("op") == "public_keys":
        return {"keys": [base64.b64encode(key.public).decode() for key in KEYS.values()]}
    if request.get("op") == "sign":
        key = KEYS.get(request.get("key"))
        if key is None:
            return {"error": "there is no such key here"}
        signature = key.sign(base64.b64decode(request["data"]))
        return {"signature": base64.b64encode(signature).decode()}
    return {"error": "unknown request"}


class Connection(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            try:
                said = answer(json.loads(line))
            except Exception as error:  # whatever it is, the console is told, and the next request may be better
                said = {"error": str(error)}
            self.wfile.write(json.dumps(said).encode() + b"\n")
            self.wfile.flush()


if __name__ == "__main__":
    path, *files = sys.argv[1:]
    KEYS = {key.id: key for key in map(Key, files)}
    if os.path.exists(path):
        os.unlink(path)
    with socketserver.ThreadingUnixStreamServer(path, Connection) as server:
        print("ready:", ", ".join(KEYS), flush=True)
        server.serve_forever()
