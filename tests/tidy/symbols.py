#!/usr/bin/python3
"""Checks that archives of the state machine ask the system for nothing but memory and bytes.

Usage: symbols.py ARCHIVE...

The state machine must give the same state from the same log on every machine, so it may not know a
clock, a file, a socket, an environment or a random source. What an archive leaves undefined must be
defined by another one of those given, or stand in the list below.
"""
import re
import subprocess
import sys

# ntohs and ntohl are msgpack's byte order, __cpu_model asks which checksum instruction there is.
ALLOWED = re.compile(
    r"^(malloc|calloc|realloc|free|abort|qsort|bsearch"
    r"|mem(cpy|move|set|cmp|chr|rchr|mem)|str(len|nlen|cmp|ncmp)"
    r"|ntohs|ntohl|__cpu_model"
    r"|msgpack_\w+|__stack_chk_fail|__mem(cpy|move|set)_chk|_GLOBAL_OFFSET_TABLE_)$"
)


def symbols(archive, option):
    """The names that nm prints for an archive with that option."""
    out = subprocess.run(["nm", option, "--format=posix", archive], check=True,
                         capture_output=True, text=True).stdout
    return {line.split()[0] for line in out.splitlines() if len(line.split()) >= 2}


def main():
    archives = sys.argv[1:]
    if not archives:
        sys.exit(__doc__)
    defined = set()
    for archive in archives:
        defined |= symbols(archive, "--defined-only")
    failed = 0
    for archive in archives:
        for name in sorted(symbols(archive, "--undefined-only") - defined):
            if not ALLOWED.match(name):
                print(f"{archive}: needs `{name}`, which is not on the list")
                failed += 1
    print(f"{len(archives)} archives, {len(defined)} symbols, {failed} forbidden")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
