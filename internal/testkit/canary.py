"""Keeps memory, files and a count, and tells at each step whether they are
what they were. argv: seed, megabytes of memory, megabytes of a file, after how many
steps it looks at all of them."""
import hashlib, http.server, json, os, sys, threading, time

SEED, BLOCKS, SIZE = sys.argv[1], int(sys.argv[2]) * 16, 64 << 10
FILED, FULL = int(sys.argv[3]) * 16, int(sys.argv[4])
PATH = "/var/tmp/canary"


def block(k, version):
    return hashlib.shake_256(f"{SEED}/{k}/{version}".encode()).digest(SIZE)


versions = [0] * BLOCKS
memory = [bytearray(block(k, 0)) for k in range(BLOCKS)]
named = open(PATH, "wb+", buffering=0)
unlinked = open(PATH + ".gone", "wb+", buffering=0)
os.unlink(PATH + ".gone")
# A file whose blocks are written again and again, and whether each is whole.
filed = open(PATH + ".blocks", "wb+", buffering=0)
file_versions, whole = [0] * FILED, [True] * FILED
for k in range(FILED):
    filed.write(block(f"file/{k}", 0))
chain, n, mono, lines, written = b"", 0, time.monotonic(), hashlib.sha256(), 0
lock = threading.Lock()


def bad(k):
    return memory[k] != block(k, versions[k])


def bad_file(k):
    return whole[k] and os.pread(filed.fileno(), SIZE, k * SIZE) != block(f"file/{k}", file_versions[k])


def put(f, data, at):
    """Writes data where it belongs, or raises OSError: the disk is full."""
    while data:
        done = os.pwrite(f.fileno(), data, at)
        data, at = data[done:], at + done


def write_block(k):
    whole[k] = False
    put(filed, block(f"file/{k}", file_versions[k]), k * SIZE)
    whole[k] = True


def step():
    """Makes a step, or raises OSError: then none was made."""
    global chain, n, mono, written
    wrong = []
    after = hashlib.sha256(chain + (n + 1).to_bytes(8, "big")).digest()
    line = after.hex().encode() + b"\n"
    for f in (named, unlinked):
        put(f, line, written)  # the next try writes it there, too
    for k in range(FILED):
        if not whole[k]:
            write_block(k)
    if FILED:
        k = int.from_bytes(after[4:8], "big") % FILED
        if bad_file(k):
            wrong.append(f"file block {k}")
        file_versions[k] += 1
        write_block(k)
    chain, n, written = after, n + 1, written + len(line)
    lines.update(line)
    k = int.from_bytes(chain[:4], "big") % BLOCKS
    if bad(k):
        wrong.append(f"memory block {k}")
    versions[k] += 1
    memory[k][:] = block(k, versions[k])
    if n % FULL == 0:
        wrong += [f"memory block {k}" for k in range(BLOCKS) if bad(k)]
        wrong += [f"file block {k}" for k in range(FILED) if bad_file(k)]
        for f in (named, unlinked):
            if hashlib.sha256(os.pread(f.fileno(), written + 1, 0)).digest() != lines.digest():
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
            try:
                status, body = 200, json.dumps(step()).encode()
            except OSError as e:
                status, body = 507, str(e).encode()
        self.send_response(status)
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
