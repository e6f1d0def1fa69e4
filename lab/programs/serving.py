"""A service: an HTTP server whose handlers run DistilBERT eagerly, and one client in a process of its own."""

import http.server
import subprocess
import sys

import torch
from iterations import it
from transformers import DistilBertConfig, DistilBertForMaskedLM

model = DistilBertForMaskedLM(DistilBertConfig(dim=256, hidden_dim=1024, n_heads=4)).to(it.device).eval()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @torch.inference_mode()
    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        words = torch.frombuffer(bytearray(self.rfile.read(size)), dtype=torch.uint8).to(it.device).long()
        answer = model(words[None]).logits.argmax(-1).cpu().numpy().tobytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        it.end()

    def log_message(self, *_: object) -> None:
        pass


CLIENT = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
while True:
    connection.request("POST", "/", bytes(range(97, 97 + 24)) * 4)
    connection.getresponse().read()
"""

with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
    client = subprocess.Popen([sys.executable, "-c", CLIENT, str(server.server_address[1])], stderr=subprocess.DEVNULL)
    server.timeout = 0.2
    while not it.enough():
        server.handle_request()  # of a new connection; its thread answers all requests of it
    client.kill()
    client.wait()
