"""Scores two rows with Python's standard library alone: KServe v1, over one connection that stays open."""

from __future__ import annotations

import argparse
import http.client
import json
import sys

ROWS = [{"words": [1, 2, 99], "dense": [0.5, 0.25]}, {"words": [4, 5, 6], "dense": [0.5, 0.25]}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8000", help="the server's HTTP address, without http://")
    connection = http.client.HTTPConnection(parser.parse_args().url, timeout=5)

    for row in ROWS:
        body = json.dumps({"instances": [row]})
        connection.request("POST", "/v1/models/tiny:predict", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = json.loads(answer.read())  # read to the end, or the connection cannot be used again
        if answer.status != 200:
            sys.exit(f"{answer.status}: {content['error']}")
        print(content["predictions"][0])
        version, sequence = answer.headers["Emberline-Model-Version"], answer.headers["Emberline-Sequence"]
        print(f"answered by snapshot {version}.{sequence}", file=sys.stderr)
    connection.close()


if __name__ == "__main__":
    main()
