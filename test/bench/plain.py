# A server that discards what it gets, sends what it has, and runs the program
# that does nothing: what the way into a sandbox takes, and nothing else.
import http.server
import os
import socketserver
import sys

PIECE = bytearray(1 << 20)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        left = int(self.headers["Content-Length"])
        piece = memoryview(PIECE)
        while left > 0:
            n = self.rfile.readinto1(piece[: min(left, len(piece))])
            if n == 0:
                return
            left -= n
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        left = int(self.path[1:])
        self.send_response(200)
        self.send_header("Content-Length", str(left))
        self.end_headers()
        while left > 0:
            n = min(left, len(PIECE))
            self.connection.sendall(memoryview(PIECE)[:n])
            left -= n

    def do_POST(self):
        _, status = os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
        self.send_response(200 if status == 0 else 500)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


with Server(("", int(sys.argv[1])), Handler) as server:
    print("ready", flush=True)
    server.serve_forever()
