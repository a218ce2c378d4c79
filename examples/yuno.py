#!/usr/bin/env python3
"""A yuno in Python, with nothing but the standard library: it plays, takes the commands `echo`, `refuse` (from then on it
will not play) and `hang` (which it never answers), and tells numbers about itself.

    muster artifact create examples/yuno.py --role sample --version 1
    muster unit create yuno default/sample --artifact sample --lines --run --play
    muster yuno command default/sample echo words=hello
"""

import json
import os
import signal
import socket
import sys
import time


class Channel:
    """Lines, over a connection that is made again when it is lost."""

    def __init__(self, can):
        self.can, self.ready = can, False
        self.connect()

    def connect(self):
        name = os.environ["MUSTER_SOCKET"]
        while True:
            try:
                self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.socket.connect("\0" + name[1:] if name.startswith("@") else name)
                self.lines = self.socket.makefile("r", encoding="utf-8")
                hello = {"token": os.environ["MUSTER_TOKEN"], "protocol": 1, "can": self.can, "ready": self.ready}
                self.socket.sendall(json.dumps({"hello": hello}).encode() + b"\n")
                first = json.loads(self.lines.readline() or "{}")
            except OSError:
                first = {}
            if "refused" in first:
                sys.exit("refused: " + first["refused"]["why"])
            if "welcome" in first:
                self.welcome = first["welcome"]
                return
            time.sleep(0.1)

    def say(self, **line):
        try:
            self.socket.sendall(json.dumps(line).encode() + b"\n")
        except OSError:
            pass  # The next line that is waited for finds it out.

    def next(self):
        """The next request: its name and what it brings. A name of None is a new connection."""
        try:
            line = self.lines.readline()
        except OSError:
            line = ""
        if not line:
            self.connect()
            return None, self.welcome
        return next(iter(json.loads(line).items()))


def main():
    # How a yuno with a channel is asked to end.
    signal.signal(signal.SIGQUIT, lambda *_: sys.exit(0))
    channel = Channel(["play", "command", "stats"])
    playing, refuses, requests = channel.welcome["playing"], False, 0
    channel.ready = True
    channel.say(ready={})
    while True:
        name, request = channel.next()
        requests += 1

        def ok(result=None):
            channel.say(answer={"id": request["id"], "ok": result})

        def error(code, message):
            channel.say(answer={"id": request["id"], "error": {"code": code, "message": message}})

        if name is None:
            playing = request["playing"]
        elif name == "play" and refuses:
            error("not_now", "it was told to refuse")
        elif name in ("play", "pause"):
            playing = name == "play"
            print(name, flush=True)
            ok()
        elif name == "stats":
            ok({"playing": playing, "requests": requests})
        elif name == "command" and request["name"] == "echo":
            ok(request["args"])
        elif name == "command" and request["name"] == "refuse":
            refuses = True
            ok()
        elif name == "command" and request["name"] == "hang":
            pass
        elif name == "refused":
            sys.exit("refused: " + request["why"])
        else:
            error("unknown", "this is not known here")


main()
