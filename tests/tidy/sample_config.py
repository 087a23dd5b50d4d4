#!/usr/bin/python3
"""Checks that the sample configuration of docs/operations.md is what `tenured` takes.

Usage: sample_config.py TENURED

The one block marked `conf` must pass `--check-config`, and must name every option there is, so that
the documentation cannot fall behind the parser.
"""
import os
import re
import subprocess
import sys
import tempfile

DOCUMENT = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                        "..", "..", "docs", "operations.md")


def main():
    tenured = sys.argv[1]
    with open(DOCUMENT, encoding="utf-8") as file:
        sample = re.search(r"^```conf\n(.*?)^```", file.read(), re.M | re.S)[1]
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(sample)
        file.flush()
        done = subprocess.run([tenured, "--config", file.name, "--check-config"],
                              capture_output=True, text=True, timeout=20, check=False)
    sys.stdout.write(done.stdout + done.stderr)
    if done.returncode != 0:
        sys.exit(f"the sample is refused with exit {done.returncode}")
    named = set(re.findall(r"^#?\s*(\w+) = ", sample, re.M))
    known = set(re.findall(r"^#?\s*(\w+) = ", done.stdout, re.M))
    if named != known:
        sys.exit(f"only in the sample: {sorted(named - known)}; missing: {sorted(known - named)}")


if __name__ == "__main__":
    main()
