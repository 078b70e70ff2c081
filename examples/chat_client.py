"""A chat with a configured pair: ollama's own client, whose requests for the pair are speculated in this program.

python examples/chat_client.py coder "Write a bubble sort in C."
"""

import sys

from specollama import Client


def main(pair: str, question: str) -> None:
    with Client() as client:
        for part in client.chat(pair, [{"role": "user", "content": question}], stream=True):
            print(part.message.content or "", end="", flush=True)
            if part.specollama:  # the last part has the counters
                print(f"\nroute {part.specollama['route']}, acceptance rate {part.specollama['acceptance_rate']}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
