#!/usr/bin/python3
"""Plants one fault per rule in a small tree and expects tidy.py to find exactly that.

A checker that nothing can fail proves nothing.
"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
HEAD = "/* What it is for. */\n"


def guarded(path, body):
    guard = path.replace("/", "_").replace(".", "_").upper() + "_"
    return f"{HEAD}#ifndef {guard}\n#define {guard}\n{body}\n#endif\n"


GOOD = {
    "README.md": "# x\n",
    "fsm/base/a.h": guarded("fsm/base/a.h", "int a_get(void);"),
    "fsm/types.h": guarded("fsm/types.h", '#include "fsm/base/a.h"'),
    "fsm/CMakeLists.txt": "# fsm\ntenure_library(fsm SOURCES base/a.c)\n",
    "fsm/base/a.c": HEAD + '#include "fsm/base/a.h"\n\nint a_get(void)\n{\n    return 1;\n}\n',
}
LONG_BODY = "int a_get(void)\n{\n" + "    (void)0;\n" * 68 + "}\n"
FITTING_BODY = "int a_get(void)\n{\n" + "    (void)0;\n" * 67 + "}\n"

# name, file, its content, the finding expected (None: nothing)
CASES = [
    ("clean_tree", "fsm/base/b.h", guarded("fsm/base/b.h", ""), None),
    ("function_of_70_lines", "fsm/base/a.c", HEAD + FITTING_BODY, None),
    ("function_of_71_lines", "fsm/base/a.c", HEAD + LONG_BODY, "a_get has 71 lines"),
    ("five_parameters", "fsm/base/b.h",
     guarded("fsm/base/b.h", "int b(int a, int b, int c, int (*d)(int, int), int e);"), None),
    ("six_parameters", "fsm/base/b.h",
     guarded("fsm/base/b.h", "int b(int a, int b, int c,\n      int d, int e, int f);"),
     "b has 6 parameters"),
    ("line_of_100_columns", "fsm/base/a.c", HEAD + "/* " + "x" * 94 + " */\n", None),
    ("line_of_101_columns", "fsm/base/a.c", HEAD + "/* " + "x" * 95 + " */\n", "101 columns"),
    ("base_includes_fsm", "fsm/base/a.c", HEAD + '#include "fsm/types.h"\n', "may not include"),
    ("fsm_includes_uv", "fsm/b.h", guarded("fsm/b.h", "#include <uv.h>"), "belongs to other"),
    ("fsm_includes_clock", "fsm/b.h", guarded("fsm/b.h", "#include <time.h>"),
     "fsm may not include <time.h>"),
    ("node_includes_raft", "node/b.h", guarded("node/b.h", "#include <raft.h>"),
     "belongs to other"),
    ("router_includes_uv", "node/router.h", guarded("node/router.h", "#include <uv.h>"),
     "a pure file may not include <uv.h>"),
    ("loop_includes_uv", "node/loop.h", guarded("node/loop.h", "#include <uv.h>"), None),
    ("cli_includes_inside", "client/cli/b.h",
     guarded("client/cli/b.h", '#include "fsm/types.h"'), "may not include"),
    ("include_without_root", "fsm/b.h", guarded("fsm/b.h", '#include "types.h"'),
     "may not include"),
    ("test_includes_c_file", "tests/b.h", guarded("tests/b.h", '#include "fsm/base/a.c"'),
     "may not include"),
    ("banned_call", "fsm/base/a.c", HEAD + "int a_get(void)\n{\n    return rand();\n}\n",
     "call of rand"),
    ("banned_word_in_comment", "fsm/base/a.c", HEAD + "/* no rand() here */\n", None),
    ("name_ends_in_banned_word", "fsm/base/a.c",
     HEAD + "int a_get(void)\n{\n    return end_time(1);\n}\n", None),
    ("no_header_comment", "fsm/base/a.c", "#include <string.h>\n", "starts without a comment"),
    ("wrong_guard", "fsm/base/b.h", HEAD + "#ifndef B_H\n#define B_H\n#endif\n",
     "must be FSM_BASE_B_H_"),
    ("not_in_cmake", "fsm/base/b.c", HEAD, "is in no CMakeLists.txt"),
    ("readme_command_missing", "README.md", "```sh\nscripts/absent --now\n```\n",
     "scripts/absent cannot be run"),
    ("machine_path", "docs/a.md", "see /home" "/someone/x\n", "is somebody's own"),
    ("leftover", "docs/a.md", "FIX" "ME later\n", "leftover"),
    ("trailing_space", "fsm/base/a.c", HEAD + "int a; \n", "spaces at the end"),
]


def findings(path, content):
    """What tidy.py prints for the good tree with that file put in."""
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["git", "init", "-q", root], check=True)
        for name, text in {**GOOD, path: content}.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
        out = subprocess.run([sys.executable, os.path.join(HERE, "tidy.py"), root],
                             capture_output=True, text=True, check=False)
        return out.stdout.splitlines()[:-1] if out.stdout else [out.stderr]


def main():
    failed = 0
    for name, path, content, expected in CASES:
        print(f"[ RUN      ] tidy__{name}")
        found = findings(path, content)
        is_right = not found if expected is None else len(found) == 1 and expected in found[0]
        if not is_right:
            print(f"    expected {expected or 'nothing'}, found {found}")
            failed += 1
        print(f"[ {'      OK' if is_right else ' FAILED '} ] tidy__{name}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
