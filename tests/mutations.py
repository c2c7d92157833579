"""Files that are not as they were written: damaged by chance, or changed by somebody who means harm."""

import io
import json
import struct
import zipfile
import zlib

import numpy as np

NASTY = (
    *(None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "", [], {}, [[]], [None]),
    *("x" * 100_000, "\x1b[2J", "../../etc/passwd", "float999", {"a": {"b": []}}, [10**9] * 40),
)
DEEP = b"[" * 100_000 + b"]" * 100_000


def members_of(content):
    """Return the members of a zip file by name."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zip_of(members):
    """Return the zip file with these members."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return content.getvalue()


def bomb(name, copies=2):
    """Return a zip file of 4 MB per copy that expands to 4 GB per copy, which no test writes out."""
    part = 1 << 26
    packing = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packing.compress(bytes(part)) + packing.flush(zlib.Z_FULL_FLUSH)  # may be repeated
    packed = block * 63 + zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    content, directory = b"", b""
    for number in range(copies):
        own = (name if number == 0 else f"{name}-{number}").encode()
        sizes = struct.pack("<IIIHH", 0, len(packed), 63 * part, len(own), 0)
        begin = struct.pack("<HHHHH", 20, 0, 8, 0, 33)
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + begin + sizes
        directory += struct.pack("<HHHII", 0, 0, 0, 0, len(content)) + own
        content += b"PK\x03\x04" + begin + sizes + own + packed
    end = struct.pack("<HHHHIIH", 0, 0, copies, copies, len(directory), len(content), 0)
    return content + directory + b"PK\x05\x06" + end


def array_file(array):
    """Return an array as a file."""
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=True)
    return content.getvalue()


def with_header(text):
    """Return an array file that consists of a header."""
    header = text.encode() + b" " * (117 - len(text)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


ARRAYS = (
    array_file(np.zeros(3, object)),
    array_file(np.zeros(3, "U5")),
    array_file(np.zeros(3, [("a", "f4")])),
    array_file(np.zeros((0, 5), "f4")),
    array_file(np.array(1)),
    array_file(np.full(4, np.nan, "f4")),
    array_file(np.zeros((1,) * 30, "f4")),
    with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}"),
    with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}"),
    with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 'x')}"),
    with_header(
        "{'descr': ['', [[[[[[[[[",
    ),
    with_header("(" * 100),
    b"",
)


def flipped(content, random):
    """Change a few bytes."""
    changed = bytearray(content)
    for _ in range(random.randint(1, 8)):
        if changed:
            changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def cut(content, random):
    """Leave the end, or the beginning, out."""
    place = random.randrange(len(content) + 1)
    return content[:place] if random.random() < 0.7 else content[place:]


def changed_json(content, random):
    """Replace, remove or add something somewhere in a JSON file."""
    root = json.loads(content)
    if random.random() < 0.05:
        return random.choice([DEEP, b"", b"[]", b"null", b"1" * 10_000])
    place = root
    while True:
        keys = list(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            break
        key = random.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and random.random() < 0.6:
            place = place[key]
            continue
        if random.random() < 0.2:
            del place[key]
        else:
            place[key] = random.choice(NASTY)
        break
    return json.dumps(root).encode()


def mutated(content, random):
    """Change something in a file: in a zip file, most often in a member of it."""
    if random.random() < 0.15:
        return random.choice([flipped, cut])(content, random)
    try:
        members = members_of(content)
    except zipfile.BadZipFile:
        return flipped(content, random)
    name = random.choice(list(members))
    member, chance = members[name], random.random()
    if chance < 0.1:
        del members[name]
    elif chance < 0.15:
        members[f"../{name}"] = members.pop(name)
    elif name.endswith(".json"):
        members[name] = changed_json(member, random)
    elif name.endswith((".npz", ".fedkin")):
        members[name] = mutated(member, random)
    elif name == "description.npy" and chance < 0.9:
        with_change = changed_json(np.load(io.BytesIO(member)).tobytes(), random)
        members[name] = array_file(np.frombuffer(with_change, np.uint8))
    elif name.endswith(".npy") and chance < 0.8:
        members[name] = random.choice(ARRAYS)
    else:
        members[name] = random.choice([flipped, cut])(member, random)
    return zip_of(members)
