# A process that holds memory and files, and changes a part of the memory after each request.
import http.server
import os
import random
import sys
import threading

size, part, files = int(sys.argv[1]) << 20, int(sys.argv[2]) << 20, int(sys.argv[3])
PIECE = 1 << 20
memory = bytearray(size)
for at in range(0, size, PIECE):
    memory[at : at + PIECE] = os.urandom(PIECE)
PER_DIRECTORY = 100
for number in range(files):
    directory = f"/srv/files/{number // PER_DIRECTORY}"
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/{number}", "wb") as file:
        file.write(os.urandom(1 << 10))


def change():
    for _ in range(part // PIECE):
        at = random.randrange(size // PIECE) * PIECE
        memory[at : at + PIECE] = os.urandom(PIECE)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and body leave in one packet

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")
        self.wfile.flush()
        threading.Thread(target=change).start()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("", 9000), Handler)
print("held", flush=True)
server.serve_forever()
