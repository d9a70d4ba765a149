"""Keeps memory, files and a count, and tells at each step whether they are
what they were. argv: seed, megabytes."""
import hashlib, http.server, json, os, sys, threading, time

SEED, BLOCKS, SIZE = sys.argv[1], int(sys.argv[2]) * 16, 64 << 10
PATH, FULL = "/var/tmp/canary", 16


def block(k, version):
    return hashlib.shake_256(f"{SEED}/{k}/{version}".encode()).digest(SIZE)


versions = [0] * BLOCKS
memory = [bytearray(block(k, 0)) for k in range(BLOCKS)]
named = open(PATH, "ab+")
unlinked = open(PATH + ".gone", "ab+")
os.unlink(PATH + ".gone")
chain, n, mono, lines = b"", 0, time.monotonic(), hashlib.sha256()
lock = threading.Lock()


def bad(k):
    return memory[k] != block(k, versions[k])


def step():
    global chain, n, mono
    wrong = []
    n += 1
    chain = hashlib.sha256(chain + n.to_bytes(8, "big")).digest()
    line = chain.hex().encode() + b"\n"
    lines.update(line)
    for f in (named, unlinked):
        f.write(line)
        f.flush()
    k = int.from_bytes(chain[:4], "big") % BLOCKS
    if bad(k):
        wrong.append(f"memory block {k}")
    versions[k] += 1
    memory[k][:] = block(k, versions[k])
    if n % FULL == 0:
        wrong += [f"memory block {k}" for k in range(BLOCKS) if bad(k)]
        for f in (named, unlinked):
            f.seek(0)
            if hashlib.sha256(f.read()).digest() != lines.digest():
                wrong.append(f"file {f.name}")
    if time.monotonic() < mono:
        wrong.append("the monotonic clock")
    mono = time.monotonic()
    return {"n": n, "chain": chain.hex(), "wrong": wrong, "wall": time.time()}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Header and body leave in one packet. In two, the second one waits for an
    # acknowledgement that the other side delays by 40 ms.
    wbufsize = -1

    def do_POST(self):
        with lock:
            body = json.dumps(step()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Keeps the sandbox awake until the caller leaves."""
        self.close_connection = True
        self.send_response(200)
        self.end_headers()
        self.wfile.flush()
        self.rfile.read(1)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("", 9000), Handler)
print("ready", flush=True)
server.serve_forever()
