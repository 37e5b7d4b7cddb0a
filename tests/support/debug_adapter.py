"""A client of the Debug Adapter Protocol, for tests: it sends to debugpy what an editor sends.

https://microsoft.github.io/debug-adapter-protocol/specification
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

Body = dict[str, Any]


class DebugAdapterError(Exception):
    """The debugger refused a request."""


class DebugAdapterClient:
    """A connection to a debugger that listens on a port of this machine.

    Its `with` block detaches at the end. After an error it only closes the connection, as an editor that crashes does.

    Args:
        port: the port that `debugpy.listen` returned.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._file = self._socket.makefile("rb")
        self._seq = 0
        self._events: list[Body] = []
        self._responses: dict[int, Body] = {}

    def __enter__(self) -> DebugAdapterClient:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Detach, and close the connection."""
        try:
            if error is None:
                self.request("disconnect", terminateDebuggee=False)
        finally:
            self._file.close()
            self._socket.close()

    # -- messages

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request; return its number."""
        self._seq += 1
        request = {"seq": self._seq, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(request).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        return self._seq

    def request(self, command: str, **arguments: Any) -> Body:
        """Send a request; return the body of its response."""
        return self.wait_for_response(self.send(command, **arguments))

    def wait_for_response(self, seq: int) -> Body:
        """Return the body of the response to a request."""
        while seq not in self._responses:
            self._read_message()
        response = self._responses.pop(seq)
        if not response["success"]:
            raise DebugAdapterError(f"{response['command']}: {response.get('message')}")
        body: Body = response.get("body") or {}
        return body

    def wait_for_event(self, name: str) -> Body:
        """Return the body of the first event of this name that was not returned before."""
        while not (found := [event for event in self._events if event["event"] == name]):
            self._read_message()
        self._events.remove(found[0])
        body: Body = found[0].get("body") or {}
        return body

    def _read_message(self) -> None:
        nbytes = None
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                nbytes = int(value)
        if nbytes is None:
            raise ConnectionError("the debugger closed the connection")
        message: Body = json.loads(self._file.read(nbytes))
        if message["type"] == "event":
            self._events.append(message)
        elif message["type"] == "response":
            self._responses[message["request_seq"]] = message

    # -- what an editor does

    def attach(self, breakpoints: Mapping[str, Sequence[int]], *, just_my_code: bool = False) -> None:
        """Attach to the process, with breakpoints.

        Args:
            breakpoints: the lines, by file.
            just_my_code: whether to stop only in files outside of the Python environment; a cell is not such a file.
        """
        self.request("initialize", adapterID="debugpy", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        # The response to `attach` comes after `configurationDone`.
        attached = self.send("attach", justMyCode=just_my_code)
        self.wait_for_event("initialized")
        for path, lines in breakpoints.items():
            self.request("setBreakpoints", source={"path": path}, breakpoints=[{"line": line} for line in lines])
        self.request("configurationDone")
        self.wait_for_response(attached)

    def wait_for_stop(self) -> list[Body]:
        """Wait until the main thread has stopped; return its frames, the innermost first."""
        thread_id = self.wait_for_event("stopped")["threadId"]
        frames: list[Body] = self.request("stackTrace", threadId=thread_id)["stackFrames"]
        return frames

    def evaluate(self, expression: str, frame: Body) -> str:
        """Return the repr of an expression in a frame of a stopped thread."""
        value: str = self.request("evaluate", expression=expression, frameId=frame["id"], context="watch")["result"]
        return value

    def resume(self) -> None:
        """Continue all threads."""
        (main,) = [each for each in self.request("threads")["threads"] if each["name"] == "MainThread"]
        self.request("continue", threadId=main["id"])
