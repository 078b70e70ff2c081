"""OpenAI's client, unchanged, against the proxy. Start `specollama serve` first.

python examples/openai_client.py http://127.0.0.1:11435 coder "Write a bubble sort in C."
"""

import sys

from openai import OpenAI


def main(proxy: str, pair: str, question: str) -> None:
    with OpenAI(base_url=f"{proxy}/v1", api_key="unused") as client:
        answer = client.chat.completions.with_raw_response.create(
            model=pair, messages=[{"role": "user", "content": question}]
        )
        print(answer.parse().choices[0].message.content)
        print(f"route {answer.headers['x-specollama-route']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
