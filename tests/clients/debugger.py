"""A debugger for one breakpoint: `debugger.py node|python HOST:PORT FILE LINE EXPRESSION URL`.

Attaches, sets the breakpoint, calls the URL, waits until the function stands at the breakpoint, prints
the value of the expression, goes on, and prints the answer. Node speaks the DevTools protocol over a
WebSocket, and debugpy the Debug Adapter Protocol. Needs the standard library only.
"""

import base64
import json
import os
import socket
import struct
import sys
import threading
import urllib.request

PATIENCE_S = 60


def connect(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), PATIENCE_S)


def call(url):
    """Calls the URL in the background; returns a function that waits for the answer."""
    answer = []

    def run():
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            answer.append(response.read().decode())

    thread = threading.Thread(target=run)
    thread.start()

    def wait():
        thread.join(PATIENCE_S)
        return answer[0]

    return wait


class DevTools:
    """The messages of a WebSocket, which are short texts."""

    def __init__(self, address):
        with urllib.request.urlopen(f"http://{address}/json/list", timeout=PATIENCE_S) as response:
            url = json.load(response)[0]["webSocketDebuggerUrl"]
        self.socket = connect(address)
        key = base64.b64encode(os.urandom(16)).decode()
        path = "/" + url.split("/", 3)[3]
        head = f"GET {path} HTTP/1.1\r\nhost: {address}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
        head += f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n"
        self.socket.sendall(head.encode())
        self.stream = self.socket.makefile("rb")
        while self.stream.readline().strip():
            pass
        self.number = 0

    def send(self, method, **params):
        self.number += 1
        text = json.dumps({"id": self.number, "method": method, "params": params}).encode()
        length = struct.pack("!BBH", 0x81, 0x80 | 126, len(text))
        self.socket.sendall(length + b"\0\0\0\0" + text)
        return self.until(lambda message: message.get("id") == self.number)

    def until(self, wanted):
        while True:
            _, length = self.stream.read(2)
            length &= 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", self.stream.read(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self.stream.read(8))
            message = json.loads(self.stream.read(length))
            if wanted(message):
                return message


def node(address, file, line, expression, url):
    tools = DevTools(address)
    tools.send("Runtime.enable")
    tools.send("Debugger.enable")
    tools.send("Debugger.setBreakpointByUrl", urlRegex=f".*/{file}", lineNumber=line - 1)
    answer = call(url)
    paused = tools.until(lambda message: message.get("method") == "Debugger.paused")
    frame = paused["params"]["callFrames"][0]["callFrameId"]
    value = tools.send("Debugger.evaluateOnCallFrame", callFrameId=frame, expression=expression)
    print(value["result"]["result"].get("value"))
    tools.send("Debugger.resume")
    print(answer())


class Adapter:
    """The messages of the Debug Adapter Protocol."""

    def __init__(self, address):
        self.socket = connect(address)
        self.stream = self.socket.makefile("rb")
        self.number = 0

    def ask(self, command, **arguments):
        self.number += 1
        message = {"seq": self.number, "type": "request", "command": command, "arguments": arguments}
        text = json.dumps(message).encode()
        self.socket.sendall(b"Content-Length: %d\r\n\r\n" % len(text) + text)

    def send(self, command, **arguments):
        self.ask(command, **arguments)
        return self.until(lambda message: message.get("command") == command)

    def until(self, wanted):
        while True:
            length = 0
            while line := self.stream.readline().strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            message = json.loads(self.stream.read(length))
            if wanted(message):
                return message


def python(address, file, line, expression, url):
    adapter = Adapter(address)
    adapter.send("initialize", adapterID="test", pathFormat="path", linesStartAt1=True)
    adapter.ask("attach", justMyCode=False)
    adapter.until(lambda message: message.get("event") == "initialized")
    source = {"path": f"/function/{file}"}
    adapter.send("setBreakpoints", source=source, breakpoints=[{"line": line}])
    adapter.send("configurationDone")
    answer = call(url)
    stopped = adapter.until(lambda message: message.get("event") == "stopped")
    thread = stopped["body"]["threadId"]
    frames = adapter.send("stackTrace", threadId=thread)["body"]["stackFrames"]
    value = adapter.send("evaluate", expression=expression, frameId=frames[0]["id"])
    print(value["body"]["result"])
    adapter.send("continue", threadId=thread)
    print(answer())


if __name__ == "__main__":
    kind, address, file, line, expression, url = sys.argv[1:]
    {"node": node, "python": python}[kind](address, file, int(line), expression, url)
