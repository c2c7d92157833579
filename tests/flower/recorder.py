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
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                node, _ = self._listener.accept()
                link = socket.create_connection(self.target)
                for source, sink, way in ((node, link, "up"), (link, node, "down")):
                    arguments = (source, sink, self.recorded[way])
                    threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()

    def _pass_on(self, source, sink, record):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                record.extend(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
