"""`python docs/examples/alerts.py 9099`: what a setting `alert_url` of http://127.0.0.1:9099 is told, a line each."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Alerts(BaseHTTPRequestHandler):
    """Prints what it is sent."""

    def do_POST(self) -> None:
        """Take one alert."""
        alert = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sys.stdout.write(f"{alert['what']}: {alert['text']}\n")
        sys.stdout.flush()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing of the requests themselves."""


HTTPServer(("127.0.0.1", int(sys.argv[1])), Alerts).serve_forever()
