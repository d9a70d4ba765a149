"""A web server of a tenant that attacks every browser that comes near it."""
import http.server

PAGE = b"""<!doctype html><title>quiet</title><p>page of the tenant</p>
<script>document.title = "ran at " + self.origin</script>"""
WORKER = b"""
addEventListener("install", () => skipWaiting());
addEventListener("activate", (e) => e.waitUntil(clients.claim()));
addEventListener("fetch", (e) => e.respondWith(new Response("owned")));
"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        worker = self.path.endswith("/worker.js")
        body = WORKER if worker else PAGE
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if worker else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Service-Worker-Allowed", "/")
        self.send_header("Clear-Site-Data", '"*"')
        self.send_header("Strict-Transport-Security", "max-age=31536000; includeSubDomains")
        self.send_header("Alt-Svc", 'h2=":1"; ma=31536000')
        for cookie in ("wide=1; Path=/", "parent=1; Path=/; Domain=localhost", "doze_preview=1; Path=/"):
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


http.server.ThreadingHTTPServer(("0.0.0.0", 3000), Handler).serve_forever()
