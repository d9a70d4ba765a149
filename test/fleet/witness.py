"""Tells a recorder all the time that it runs, and callers whether its memory is what it
was. argv: name, address and port of the recorder, megabytes of memory, seconds between writes."""
import hashlib, http.server, json, os, socket, sys, threading, time, urllib.parse

NAME, ADDRESS, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
SIZE, EVERY = 1 << 20, float(sys.argv[5])
BORN = os.urandom(16).hex()


def block(k):
    return hashlib.shake_256(f"{BORN}/{k}".encode()).digest(SIZE)


memory = [bytearray(block(k)) for k in range(int(sys.argv[4]))]
sums = [hashlib.sha256(b).digest() for b in memory]
# What the next write says. One tuple, so that it is whole at any moment.
state = (1, 0, 0)  # n, token, heard


def write(files):
    """Says one message on an open connection, and takes over the answer."""
    global state
    n, token, heard = state
    files[1].write(json.dumps({"name": NAME, "born": BORN, "n": n, "token": token, "heard": heard}).encode() + b"\n")
    files[1].flush()
    line = files[0].readline()
    if not line:
        raise OSError("closed")
    said = json.loads(line)
    if "token" in said:
        state = (n + 1, said["token"], said["token"])
        return True
    state = (n, token, said["challenge"])
    return False


def tell():
    while True:
        try:
            with socket.create_connection((ADDRESS, PORT), timeout=2) as s:
                files = s.makefile("rb"), s.makefile("wb")
                while True:
                    if write(files):
                        time.sleep(EVERY)
        except (OSError, ValueError):
            time.sleep(EVERY)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def lines(self):
        """Writes a line at a time: /lines?n=40&every=0.3"""
        ask = {k: v[0] for k, v in urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).items()}
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(int(ask["n"])):
            line = b"%d\n" % i
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
            time.sleep(float(ask["every"]))
        self.wfile.write(b"0\r\n\r\n")

    def do_GET(self):
        if self.path.startswith("/lines"):
            return self.lines()
        n = state[0] - 1
        bad = [k for k, b in enumerate(memory) if hashlib.sha256(b).digest() != sums[k]] if self.path.endswith("/all") else []
        body = json.dumps({"name": NAME, "born": BORN, "n": n, "bad": bad}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("", 9000), Handler)
threading.Thread(target=tell, daemon=True).start()
print("ready", flush=True)
server.serve_forever()
