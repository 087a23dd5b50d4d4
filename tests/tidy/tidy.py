#!/usr/bin/python3
"""Machine checks of the house rules: prints FILE:LINE: rule: text, exits 1 if anything is wrong.

Usage: tidy.py [ROOT]

Looks at the files that git knows or would add. Rules:

  include      the table of includes.py, and our own headers are found by their path from the root
  banned       calls that overflow, race, see the wall clock, or stop release builds from checking
  length       functions of at most 70 lines, 5 parameters; lines of at most 100 columns
  header       every source file and script starts with a comment that says what it is for
  guard        a header's include guard is its path
  cmake        every .c file is listed in the CMakeLists.txt of its folder
  readme       commands in the README's blocks exist and can be run
  place        no path of somebody's machine, no address of a package registry
  leftover     nothing marked as still to be done, no tabs, no spaces at line ends
"""
import os
import re
import subprocess
import sys

import c_source
import includes

FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 5
COLUMNS_MAX = 100
# Functions whose signature somebody else decides: libraft's raft_io.load has seven parameters.
IMPOSED = {"guard_io_load", "fake_load"}

BANNED = re.compile(
    r"(?<![\w.>])(strcpy|strcat|sprintf|vsprintf|strtok|atoi|rand|time|gettimeofday|sleep|usleep"
    r"|assert)\s*\("
)
# Written in two parts so that this file does not break its own rule.
LEFTOVER = re.compile(r"\b(FIX" r"ME|TO" r"DO)\b")
PLACES = re.compile(
    r"/(?:work|root|Users)" r"/\w|/home" r"/[a-z]|deb\.debian" r"\.org|docker" r"\.io|quay" r"\.io"
    r"|g(?:h)?cr" r"\.io|pypi" r"\.org|proxy\.golang" r"\.org|registry\.npmjs" r"\.org"
)
COMMAND_BLOCK = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Tree:
    """The files under one root, and what was found wrong in them."""

    def __init__(self, root):
        self.root = root
        out = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, capture_output=True, text=True).stdout
        self.paths = sorted(path for path in set(out.split("\0"))
                            if path and os.path.isfile(os.path.join(root, path)))
        self.texts = {}
        self.errors = []

    def text(self, path):
        """The file's text, or None if it is not text."""
        if path not in self.texts:
            with open(os.path.join(self.root, path), "rb") as file:
                data = file.read()
            try:
                self.texts[path] = None if b"\0" in data else data.decode("utf-8")
            except UnicodeDecodeError:
                self.texts[path] = None
        return self.texts[path]

    def error(self, path, line, rule, text):
        self.errors.append(f"{path}:{line}: {rule}: {text}")

    def is_script(self, path):
        return os.access(os.path.join(self.root, path), os.X_OK)


def beside(tree, path, header):
    """True for installed headers, which find each other wherever they are."""
    return (re.fullmatch(r"client/tenure\w*\.h", path)
            and os.path.join(os.path.dirname(path), header) in tree.paths)


def check_includes(tree, path, text):
    for line, is_ours, header in c_source.includes(text):
        error = includes.error_of(path, is_ours, header)
        if error:
            tree.error(path, line, "include", error)
        elif is_ours and header not in tree.paths and not beside(tree, path, header):
            tree.error(path, line, "include", f'there is no "{header}" under the root')
        elif header.endswith(".c"):
            tree.error(path, line, "include", "a .c file is not included")


def check_calls(tree, path, text):
    code = c_source.blank(text)
    for match in BANNED.finditer(code):
        tree.error(path, c_source.line_of(code, match.start()), "banned", f"call of {match[1]}")


def check_functions(tree, path, text):
    for function in c_source.functions(text):
        lines = function.last - function.first + 1
        if lines > FUNCTION_LINES_MAX:
            tree.error(path, function.first, "length", f"{function.name} has {lines} lines")
        if function.parameters > PARAMETERS_MAX and function.name not in IMPOSED:
            tree.error(path, function.first, "length",
                       f"{function.name} has {function.parameters} parameters")


def check_guard(tree, path, text):
    guard = re.sub(r"[^A-Za-z0-9]", "_", path).upper() + "_"
    directives = [line.split() for line in c_source.blank(text).splitlines()
                  if line.lstrip().startswith("#")]
    if directives[:2] != [["#ifndef", guard], ["#define", guard]]:
        tree.error(path, 1, "guard", f"the include guard must be {guard}")


def check_lines(tree, path, text):
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            tree.error(path, number, "length", f"{len(line)} columns")
        if line != line.rstrip():
            tree.error(path, number, "leftover", "spaces at the end of the line")
        if "\t" in line and path.endswith((".c", ".h", ".py")):
            tree.error(path, number, "leftover", "a tab")


def check_header(tree, path, text):
    lines = text.splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    first = lines[0] if lines else ""
    wanted = ("/*", "//") if path.endswith((".c", ".h")) else ("#", '"""', "'''", 'r"""')
    if not first.startswith(wanted) or first.startswith("#include"):
        tree.error(path, 1, "header", "starts without a comment that says what it is for")


def check_anywhere(tree, path, text):
    """Rules for every text file, documents and configuration included."""
    for number, line in enumerate(text.splitlines(), 1):
        match = LEFTOVER.search(line)
        if match:
            tree.error(path, number, "leftover", f"marked {match[1]}")
        match = PLACES.search(line)
        if match:
            tree.error(path, number, "place", f"`{match[0]}` is somebody's own")


def check_cmake(tree):
    """Every .c file of the product and its tests stands in a CMakeLists.txt above it."""
    for path in tree.paths:
        if not re.match(r"(fsm|raft|node|client|tests)/.*\.c$", path):
            continue
        folder, listed = os.path.dirname(path), False
        stem = os.path.basename(path)[:-2]
        while folder and not listed:
            lists = tree.text(folder + "/CMakeLists.txt") \
                if folder + "/CMakeLists.txt" in tree.paths else ""
            relative = re.escape(os.path.relpath(path, folder))
            listed = re.search(rf"(?<![\w/]){relative}(?!\w)|(?<=[\s(]){stem}(?=[\s)])",
                               lists or "")
            folder = os.path.dirname(folder)
        if not listed:
            tree.error(path, 1, "cmake", "is in no CMakeLists.txt")


def check_readme(tree):
    if "README.md" not in tree.paths:
        tree.error("README.md", 1, "readme", "is missing")
        return
    text = tree.text("README.md")
    for block in COMMAND_BLOCK.finditer(text):
        first = c_source.line_of(text, block.start(1))
        for offset, line in enumerate(block[1].splitlines()):
            words = line.removeprefix("$ ").split()
            if not words or not re.match(r"(\./)?(scripts|tests|\.ci)/", words[0]):
                continue
            path = words[0].removeprefix("./")
            if path not in tree.paths or not tree.is_script(path):
                tree.error("README.md", first + offset, "readme", f"{path} cannot be run")


def check_file(tree, path):
    text = tree.text(path)
    if text is None:
        return
    if path != "LICENSE":
        check_anywhere(tree, path, text)
    is_c = path.endswith((".c", ".h"))
    if is_c:
        check_includes(tree, path, text)
        check_calls(tree, path, text)
        check_functions(tree, path, text)
    if path.endswith(".h"):
        check_guard(tree, path, text)
    is_source = is_c or path.endswith(".py") or os.path.basename(path) == "CMakeLists.txt" \
        or tree.is_script(path)
    if is_source and text:
        check_lines(tree, path, text)
        check_header(tree, path, text)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else \
        os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    tree = Tree(os.path.abspath(root))
    for path in tree.paths:
        check_file(tree, path)
    check_cmake(tree)
    check_readme(tree)
    for error in tree.errors:
        print(error)
    print(f"{len(tree.paths)} files, {len(tree.errors)} findings")
    sys.exit(1 if tree.errors else 0)


if __name__ == "__main__":
    main()
