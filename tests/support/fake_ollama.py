"""`ollama` as far as `specollama native` needs it: its version, and a server that drafts by itself, or doesn't.

Which way it goes is written in place of the first name below when it is made a program. What it was started with is
in the file `started` beside it.
"""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MANNER = MANNERS  # noqa: F821
WORDS = [f" {number}" for number in range(21, 69)]


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer([{"version": "0.33.0"}])

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if MANNER == "refuses":
            say("draft model vocab must match target model to use speculation")
            self.answer([{"error": "llama-server process has terminated"}], 500)
            return
        drafts = MANNER == "drafts" and os.environ.get("LLAMA_ARG_SPEC_TYPE") == "draft-simple"
        lines = [self.chunk(word, told=not drafts or number == 0) for number, word in enumerate(WORDS)]
        lines.append({"model": asked["model"], "response": "", "done": True, "done_reason": "length"})
        lines[-1] |= {"eval_count": len(WORDS), "eval_duration": 2_000_000_000}
        if drafts:
            say("slot print_timing: id  0 | draft acceptance = 0.82979 (   39 accepted /    47 generated)")
        self.answer(lines)

    def chunk(self, word: str, *, told: bool) -> dict:
        return {"response": word, "done": False, **({"logprobs": [{"token": word, "logprob": -0.1}]} if told else {})}

    def answer(self, lines: list, status: int = 200) -> None:
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def serve() -> None:
    here = {name: value for name, value in os.environ.items() if name.startswith(("OLLAMA_", "LLAMA_ARG_"))}
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # as Ollama's llama-server
    told = Path(__file__).with_name("started")
    told.write_text(json.dumps({"environment": here, "pids": [os.getpid(), engine.pid]}))
    if MANNER == "dies":
        say('time=now level=ERROR msg="listen tcp: address already in use"')
        sys.exit(1)
    host, _, port = os.environ["OLLAMA_HOST"].rpartition(":")
    ThreadingHTTPServer((host, int(port)), Answers).serve_forever()


if sys.argv[1:] == ["--version"]:
    print("Warning: could not connect to a running Ollama instance")
    print(f"Warning: client version is {'0.29.9' if MANNER == 'is old' else '0.33.0'}")
elif sys.argv[1:] == ["serve"]:
    serve()
else:
    sys.exit(2)
