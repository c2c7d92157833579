"""A TCP proxy that keeps every byte that passes, in both directions."""

import contextlib
import socket
import threading


class Recorder:
    def __init__(self, target_port):
        self.target = ("127.0.0.1", target_port)
        self.recorded = {"up": bytearray(), "down": bytearray()}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = []
        self._open = set()
        self._start(self._accept)

    def close(self):
        """Stop listening, and end what is still open."""
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in list(self._threads):
            thread.join(10)

    def _start(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                self._start(self._connect, self._listener.accept()[0])

    def _connect(self, node):
        with node, contextlib.suppress(OSError), socket.create_connection(self.target) as link:
            self._open |= {node, link}
            down = self._start(self._pass_on, link, node, "down", node)
            self._pass_on(node, link, "up", node)
            down.join()
            self._open -= {node, link}

    def passing(self, way, connection, data):
        """Return whether bytes may pass; if not, the connection ends."""
        return True

    def _pass_on(self, source, sink, way, connection):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.recorded[way].extend(data)
                if not self.passing(way, connection, data):
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
