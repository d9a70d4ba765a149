"""Counts visits in memory, in a volume and in scratch, in files that stay open. Each answer says
what all of them have, and what a file has that was never open when the sandbox slept."""
import hashlib, http.server, json, os

BORN = os.urandom(16).hex()
SIZE = 1 << 20
block = os.urandom(SIZE)
total = 0
os.makedirs("/data/deep", exist_ok=True)
lasting, passing = open("/data/log", "a+b", buffering=0), open("/scratch/log", "a+b", buffering=0)


def lines(f):
    f.seek(0)
    return f.read().count(b"\n")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self):
        global total
        if self.path.endswith("/add"):
            total += 1
            for f in lasting, passing:
                f.write(b"%d\n" % total)
            with open("/data/deep/%d" % (total % 7), "wb") as f:
                f.write(hashlib.shake_256(b"%d" % total).digest(SIZE))
        last = b""
        if total:
            with open("/data/deep/%d" % (total % 7), "rb") as f:
                last = f.read()
        whole = total == 0 or last == hashlib.shake_256(b"%d" % total).digest(SIZE)
        body = json.dumps({"born": BORN, "memory": total, "volume": lines(lasting), "passing": lines(passing), "whole": whole}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("", 9000), Handler)
print("ready", flush=True)
server.serve_forever()
