#!/usr/bin/python3
"""Checks that every header of the product compiles alone: it includes what it needs.

Usage: headers.py COMPILER [OPTION...]
"""
import concurrent.futures
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FOLDERS = ("fsm", "raft", "node", "client")


def headers():
    for folder in FOLDERS:
        for at, _, names in os.walk(os.path.join(ROOT, folder)):
            for name in sorted(names):
                if name.endswith(".h"):
                    yield os.path.relpath(os.path.join(at, name), ROOT)


def error_of(header):
    """What the compiler says about a file that includes that header twice, or nothing."""
    source = f'#include "{header}"\n#include "{header}"\n'
    command = [*sys.argv[1:], "-std=gnu11", "-iquote", ROOT, "-fsyntax-only", "-x", "c", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True,
                          check=False).stderr


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        names = list(headers())
        for name, error in zip(names, pool.map(error_of, names)):
            if error:
                failed += 1
                print(f"{name}:1: does not compile alone\n{error}")
    print(f"{len(names)} headers, {failed} do not compile alone")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
