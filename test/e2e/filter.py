"""Drops what comes in over lo, as iptables-legacy -A INPUT -i lo -j DROP does,
or takes that back. argv: on or off."""
import ctypes, os, socket, struct, sys

INFO, ENTRIES, REPLACE = 64, 65, 64
LOCAL_IN, HOOKS, UNUSED = 1, 5, 0xFFFFFFFF
DROP, SAVED = -1, "/root/rules"

raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
libc = ctypes.CDLL(None, use_errno=True)


def read(option, name, head, more=0):
    buf = ctypes.create_string_buffer(struct.pack("32s", name) + head, 32 + len(head) + more)
    size = ctypes.c_uint32(len(buf))
    if libc.getsockopt(raw.fileno(), socket.SOL_IP, option, buf, ctypes.byref(size)):
        raise OSError(ctypes.get_errno(), "getsockopt")
    return buf.raw


def replace(valid, count, hooks, under, entries):
    head = struct.pack("32s3I5I5IIQ", b"filter", valid, count, len(entries), *hooks, *under, count, 0)
    raw.setsockopt(socket.SOL_IP, REPLACE, head + entries)


info = read(INFO, b"filter", b"\0" * 52)
valid, *offsets, count, size = struct.unpack("I5I5III", info[32:])
hooks, under = offsets[:HOOKS], offsets[HOOKS:]
entries = read(ENTRIES, b"filter", struct.pack("I4x", size), size)[40:]

if sys.argv[1] == "off":
    with open(SAVED, "rb") as f:
        head, entries = f.read(52), f.read()
    valid, *offsets, count, _ = struct.unpack("I5I5III", head)
    replace(valid, count, offsets[:HOOKS], offsets[HOOKS:], entries)
    os.unlink(SAVED)
else:
    with open(SAVED, "wb") as f:
        f.write(info[32:] + entries)
    ip = struct.pack("16x16s16s16s16sH2x", b"lo", b"", b"\xff\xff\xff", b"", 0)
    rule = ip + struct.pack("IHHI16x", 0, 112, 152, 0) + struct.pack("H30si4x", 40, b"", DROP)
    at = hooks[LOCAL_IN]
    moved = lambda o: o if o == UNUSED or o < at else o + len(rule)
    under = [moved(o) for o in under]
    hooks = [o if i == LOCAL_IN else moved(o) for i, o in enumerate(hooks)]
    replace(valid, count + 1, hooks, under, entries[:at] + rule + entries[at:])
