"""What another account of a machine may try on a federation there; a program that needs nothing but Python.

It is given a JSON object on standard input, and prints one: what was answered, and what could be read.
"""

import http.client
import json
import os
import ssl
import sys
from pathlib import Path


def ask(port, path, *, secure, headers):
    """Return the status of the answer to a request at a port of this machine."""
    if secure:
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("POST", path, b"", {"content-type": "application/protobuf", **headers})
        return connection.getresponse().status
    finally:
        connection.close()


def read(path):
    """Return the content of a file, or None if it cannot be read."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return None


def main():
    """Try everything."""
    given = json.load(sys.stdin)
    files = [
        str(Path(folder) / name)
        for folder, _, names in os.walk(given["directory"])
        for name in names
    ]
    processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    answer = {
        "user": os.getuid(),
        "superlink": {
            path: ask(given["superlink"], path, secure=True, headers=given["headers"])
            for path in given["paths"]
        },
        "nodes": [
            ask(port, "/v1/runtime/acquire-task", secure=False, headers=given["headers"])
            for port in given["nodes"]
        ],
        "found": files,
        "read": [path for path in files if read(path) is not None],
        "written": [path for path in files if os.access(path, os.W_OK)],
        "commands": [read(entry / "cmdline") or "" for entry in processes],
        "environments": [
            entry.name
            for entry in processes
            if entry.name in given["processes"] and read(entry / "environ") is not None
        ],
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
