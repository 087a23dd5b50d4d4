/* One pass with the lexical states of the file format. Line ends are LF or CR LF. */
#include "node/config_scan.h"

#define DIGITS_MAX 9u     /* any such number fits 31 bits */
#define HEX_DIGITS_MAX 7u /* likewise */
#define DEPTH_MAX 2u

enum scan_state {
    SCAN_STATE_CODE,
    SCAN_STATE_STRING,
    SCAN_STATE_LINE_COMMENT,
    SCAN_STATE_BLOCK_COMMENT,
};

struct scanner {
    struct slice text;
    size_t at;
    enum scan_state state;
    unsigned line;
    unsigned depth;
    const char *why;
    uint8_t before;    /* the last byte that is neither space nor comment */
    struct slice name; /* the last one */
    struct slice number;
};

static void scan_code(struct scanner *scanner);
static bool may_precede_text(uint8_t before, unsigned depth);
static void scan_name(struct scanner *scanner);
static void scan_number(struct scanner *scanner);
static bool next_is(const struct scanner *scanner, char next);
static bool is_control(uint8_t byte);
static bool is_letter(uint8_t byte);
static bool is_digit(uint8_t byte);
static bool is_hex_digit(uint8_t byte);

void config_scan(struct slice text, size_t len_max, struct config_scan *out_scan)
{
    struct scanner scanner = {.text = text, .line = 1};
    *out_scan = (struct config_scan){0};
    if (text.len > len_max) {
        out_scan->why = "too long for a configuration file";
        return;
    }
    if (slice_starts_with(text, slice_text("\xef\xbb\xbf"))) {
        *out_scan = (struct config_scan){
            .why = "starts with a byte order mark; save it as UTF-8 without one", .line = 1};
        return;
    }
    while (scanner.at < text.len && scanner.why == NULL) {
        uint8_t byte = text.base[scanner.at];
        bool newline = byte == '\n';
        if (is_control(byte)) {
            scanner.why = "a control character";
        } else if (scanner.state == SCAN_STATE_CODE) {
            scan_code(&scanner);
        } else if (scanner.state == SCAN_STATE_STRING) {
            if (byte == '\\' && next_is(&scanner, 'x')) {
                scanner.why = "\\x in a text: it could hide a byte that ends the text";
            } else if (byte == '\\' && (next_is(&scanner, '"') || next_is(&scanner, '\\'))) {
                scanner.at++;
            } else if (byte == '"') {
                scanner.state = SCAN_STATE_CODE;
            }
        } else if (scanner.state == SCAN_STATE_LINE_COMMENT) {
            scanner.state = newline ? SCAN_STATE_CODE : SCAN_STATE_LINE_COMMENT;
        } else if (byte == '*' && next_is(&scanner, '/')) {
            scanner.at++;
            scanner.state = SCAN_STATE_CODE;
        }
        if (scanner.why == NULL) {
            scanner.line += newline ? 1 : 0;
            scanner.at++;
        }
    }
    if (scanner.why == NULL && (scanner.state == SCAN_STATE_STRING ||
                                scanner.state == SCAN_STATE_BLOCK_COMMENT)) {
        scanner.why = "a text or a comment without an end"; /* the parser would leak it */
    }
    *out_scan = (struct config_scan){
        .why = scanner.why,
        .line = scanner.line,
        .name = scanner.name,
        .number = scanner.number,
    };
}

static void scan_code(struct scanner *scanner)
{
    uint8_t byte = scanner->text.base[scanner->at];
    uint8_t before = scanner->before;
    bool comment = byte == '#' || (byte == '/' && (next_is(scanner, '/') || next_is(scanner, '*')));
    if (!comment && byte != ' ' && byte != '\t' && byte != '\r' && byte != '\n') {
        scanner->before = byte;
    }
    if (byte == '"') {
        scanner->state = SCAN_STATE_STRING;
        if (!may_precede_text(before, scanner->depth)) {
            scanner->why = "a text where there may be none"; /* the parser would leak it */
        }
    } else if (byte == '#' || (byte == '/' && next_is(scanner, '/'))) {
        scanner->state = SCAN_STATE_LINE_COMMENT;
    } else if (byte == '/' && next_is(scanner, '*')) {
        scanner->at++;
        scanner->state = SCAN_STATE_BLOCK_COMMENT;
    } else if (byte == '@') {
        scanner->why = "@include is not supported";
    } else if (byte == '{' || byte == '[' || byte == '(') {
        if (++scanner->depth > DEPTH_MAX) {
            scanner->why = "brackets inside brackets";
        }
    } else if (byte == '}' || byte == ']' || byte == ')') {
        scanner->depth -= scanner->depth > 0 ? 1 : 0;
    } else if (is_letter(byte)) {
        scan_name(scanner);
    } else if (is_digit(byte)) {
        scan_number(scanner);
    }
}

/* A value's sign, a list, or another text that it continues. */
static bool may_precede_text(uint8_t before, unsigned depth)
{
    return before == '=' || before == ':' || before == '[' || before == '(' || before == '"' ||
           (before == ',' && depth > 0);
}

/* Stops at its last byte. */
static void scan_name(struct scanner *scanner)
{
    const uint8_t *base = scanner->text.base;
    size_t start = scanner->at;
    while (scanner->at + 1 < scanner->text.len &&
           (is_letter(base[scanner->at + 1]) || is_digit(base[scanner->at + 1]) ||
            base[scanner->at + 1] == '-' || base[scanner->at + 1] == '_')) {
        scanner->at++;
    }
    scanner->name = slice_from(base + start, scanner->at + 1 - start);
}

/* Stops at the last digit. */
static void scan_number(struct scanner *scanner)
{
    const uint8_t *base = scanner->text.base;
    bool hex = base[scanner->at] == '0' && (next_is(scanner, 'x') || next_is(scanner, 'X'));
    if (hex) {
        scanner->at++;
    }
    size_t start = scanner->at - (hex ? 1 : 0);
    size_t count = hex ? 0 : 1;
    while (scanner->at + 1 < scanner->text.len &&
           (is_digit(base[scanner->at + 1]) || (hex && is_hex_digit(base[scanner->at + 1])))) {
        scanner->at++;
        count++;
    }
    if (count > (hex ? HEX_DIGITS_MAX : DIGITS_MAX)) {
        scanner->why = "a number of more than 9 digits";
        scanner->number = slice_from(base + start, scanner->at + 1 - start);
    }
}

static bool next_is(const struct scanner *scanner, char next)
{
    return scanner->at + 1 < scanner->text.len &&
           scanner->text.base[scanner->at + 1] == (uint8_t)next;
}

static bool is_control(uint8_t byte)
{
    return (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7f;
}

static bool is_letter(uint8_t byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

static bool is_digit(uint8_t byte)
{
    return byte >= '0' && byte <= '9';
}

static bool is_hex_digit(uint8_t byte)
{
    return (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}
