"""A way to a server on loopback that a test can watch and hold up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Self


class Proxy:
    """Passes on what clients and the server at `target` say to each other. A subclass changes `ask` or `answer`."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def ask(self, data: bytes, connection: threading.Event) -> None:
        """A client has sent this. `connection` is one for each connection, for the subclass to set."""

    def answer(self, data: bytes, connection: threading.Event) -> Iterable[bytes]:
        """What the client gets of what the server has sent."""
        return (data,)

    def close(self) -> None:
        """End all connections."""
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # a thread that waits for it goes on; close alone does not wake it
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            self._ends += [client, server]
            connection = threading.Event()
            for copy in (self._copy_questions, self._copy_answers):
                self._threads.append(threading.Thread(target=copy, args=(client, server, connection)))
                self._threads[-1].start()

    def _copy_questions(self, client: socket.socket, server: socket.socket, connection: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self.ask(data, connection)
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _copy_answers(self, client: socket.socket, server: socket.socket, connection: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                for piece in self.answer(data, connection):
                    client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
