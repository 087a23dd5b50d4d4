"""Just enough C to check lengths, includes and calls: blanked text, includes, functions.

`blank` replaces comments, strings and character constants by spaces and keeps every line break, so
that a position in the result is a position in the file.
"""
import re

TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+([<\"])([^>\"]+)[>\"]", re.MULTILINE)
NAME_BEFORE_PAREN = re.compile(r"([A-Za-z_]\w*)\s*\(")
ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)", re.DOTALL)
NO_FUNCTION = {"if", "for", "while", "switch", "do", "else", "return", "sizeof", "_Static_assert",
               "static_assert"}


def _spaces(match):
    return re.sub(r"[^\n]", " ", match[0])


def blank(text):
    """The text without comments, strings and character constants, at unchanged positions."""
    return TOKEN.sub(_spaces, text)


def blank_comments(text):
    """The text without comments only."""
    return TOKEN.sub(lambda m: _spaces(m) if m[0].startswith("/") else m[0], text)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def includes(text):
    """(line, is_ours, path) of every include."""
    code = blank_comments(text)
    return [(line_of(code, m.start()), m[1] == '"', m[2]) for m in INCLUDE.finditer(code)]


class Function:
    """A function definition or prototype: its name, first and last line, number of parameters."""

    def __init__(self, name, first, last, parameters):
        self.name = name
        self.first = first
        self.last = last
        self.parameters = parameters


def _parameters(declarator, opening):
    """How many parameters stand in the parentheses that open at that position."""
    depth, commas, start = 0, 0, opening + 1
    for position in range(opening, len(declarator)):
        char = declarator[position]
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                inner = declarator[start:position].strip()
                return 0 if inner in ("", "void") else commas + 1
        elif char == "," and depth == 1:
            commas += 1
    return commas + 1


def _declared(head):
    """(name, parameters) if the text before a `{` or `;` declares a function, else None."""
    plain = ATTRIBUTE.sub("", head)
    if "=" in plain.split("(", 1)[0] or plain.lstrip().startswith("typedef"):
        return None
    match = NAME_BEFORE_PAREN.search(plain)
    if not match or match[1] in NO_FUNCTION or not plain[:match.start()].strip():
        return None
    if plain[match.end():].lstrip().startswith("*"):
        return None  # a pointer to a function
    return match[1], _parameters(plain, match.end() - 1)


def functions(text):
    """Definitions and prototypes at file level, in order."""
    code = DIRECTIVE.sub(_spaces, blank(text))
    code = re.sub(r"extern\s+\{", lambda m: " " * (len(m[0]) - 1) + " ", code)
    found, depth, start, pending = [], 0, 0, None
    for position, char in enumerate(code):
        if char == "{":
            if depth == 0:
                pending = (start, code[start:position])
            depth += 1
        elif char == "}":
            depth = max(0, depth - 1)
            if depth == 0:
                if pending:
                    _add(found, code, pending[0], pending[1], position)
                start, pending = position + 1, None
        elif char == ";" and depth == 0:
            _add(found, code, start, code[start:position], position)
            start = position + 1
    return found


def _add(found, code, start, head, end):
    declared = _declared(head)
    if declared:
        first = start + len(head) - len(head.lstrip())
        found.append(Function(declared[0], line_of(code, first), line_of(code, end), declared[1]))
