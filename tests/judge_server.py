"""An endpoint of a language model in a thread, with a script of what it answers."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TRUE = "It does.\n**Conclusion: True**"


def completion(text=TRUE):
    """A chat completion as the protocol defines it."""
    return {
        "model": "judge-2024", "usage": {"total_tokens": 7},
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
    }  # fmt: skip


@contextmanager
def judge_server(*script):
    """Serve; the n-th request gets the n-th answer of the script, the last one again and again.

    An answer is ``(status, body, headers)``, a JSON value or bytes for the body, or a function of
    the request's body that gives them; a number of seconds to hang instead; ``"drip"``: a byte
    now and then. Yields the base URL and the list of what was asked: path,
    headers and body.
    """
    asked, lock = [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                answer = script[min(len(asked), len(script) - 1)]
                asked.append({"path": self.path, "headers": dict(self.headers), "body": body})
            if isinstance(answer, int | float):
                time.sleep(answer)
                return
            if answer == "drip":
                self.send_response(200)
                self.end_headers()
                for _ in range(100):
                    self.wfile.write(b" ")
                    self.wfile.flush()
                    time.sleep(0.02)
                return
            status, content, headers = answer(body) if callable(answer) else answer
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

        def handle_one_request(self):
            try:
                super().handle_one_request()
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client has given up, as it should

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
