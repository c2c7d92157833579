import threading
from contextlib import contextmanager

import pytest

from fedkin.watch.directory import open_directory
from fedkin.watch.server import LivePage, PageServer


@pytest.fixture
def serve():
    """Serve what is in a directory, on a port that is free."""

    @contextmanager
    def serving(directory):
        with PageServer(LivePage(open_directory(directory)), 0) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield server
            finally:
                server.shutdown()
                thread.join()

    return serving
