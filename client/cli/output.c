/* How things are printed: texts that cannot drive a terminal, JSON on one line in plain ASCII. */
#include "client/cli/cli.h"

#include <stdlib.h>
#include <string.h>

static void print_escaped(FILE *out, const void *bytes, size_t len, bool doubled);
static unsigned decode(const unsigned char *bytes, size_t len, uint32_t *out_code);
static bool dangerous(uint32_t code);
static int on_json(const char *text, size_t len, void *ctx);

void print_text(FILE *out, const char *text)
{
    print_bytes(out, text, strlen(text));
}

void print_bytes(FILE *out, const void *bytes, size_t len)
{
    print_escaped(out, bytes, len, true);
}

void complain(const char *what, const char *value)
{
    fputs("tenure: ", stderr);
    print_escaped(stderr, what, strlen(what), false);
    if (value != NULL) {
        fputs(": ", stderr);
        print_escaped(stderr, value, strlen(value), false);
    }
    fputc('\n', stderr);
}

enum exit_code usage_error(const struct cli *cli, const char *what, const char *value)
{
    complain(what, value);
    if (cli->options.json) {
        char message[512];
        (void)snprintf(message, sizeof message, "%s%s%s", what, value == NULL ? "" : ": ",
                       value == NULL ? "" : value);
        json_t *error = json_object();
        json_set(error, "code", json_text(tenure_error_name(TENURE_ERROR_INVALID)));
        json_set(error, "status", json_text("USAGE"));
        json_set(error, "message", json_text(message));
        json_t *object = json_object();
        json_set(object, "error", error);
        json_print(object);
    }
    return EXIT_CODE_USAGE;
}

enum exit_code exit_code_of(enum tenure_error error)
{
    switch (error) {
    case TENURE_ERROR_NONE:
        return EXIT_CODE_DONE;
    case TENURE_ERROR_INVALID:
        return EXIT_CODE_USAGE;
    case TENURE_ERROR_UNAVAILABLE:
        return EXIT_CODE_UNAVAILABLE;
    case TENURE_ERROR_UNKNOWN:
        return EXIT_CODE_UNKNOWN;
    case TENURE_ERROR_DENIED:
        return EXIT_CODE_DENIED;
    case TENURE_ERROR_INCOMPATIBLE:
        return EXIT_CODE_INCOMPATIBLE;
    case TENURE_ERROR_INTERNAL:
        return EXIT_CODE_INTERNAL;
    }
    return EXIT_CODE_INTERNAL;
}

enum exit_code report_failure(const struct cli *cli, const struct tenure_failure *failure)
{
    complain(tenure_error_name(failure->error), failure->message);
    if (cli->options.json) {
        json_t *error = json_object();
        json_set(error, "code", json_text(tenure_error_name(failure->error)));
        json_set(error, "status", json_text(failure->status));
        json_set(error, "message", json_text(failure->message));
        if (failure->field[0] != '\0') {
            json_set(error, "field", json_text(failure->field));
            json_set(error, "value", json_text(failure->value));
            json_set(error, "rule", json_text(failure->rule));
        }
        json_t *object = json_object();
        json_set(object, "error", error);
        json_print(object);
    }
    return exit_code_of(failure->error);
}

json_t *json_text(const char *text)
{
    if (text == NULL) {
        return json_null();
    }
    json_t *value = json_string(text);
    return value != NULL ? value : json_string("(not UTF-8)");
}

json_t *json_number(uint64_t number)
{
    if (number <= INT64_MAX) {
        return json_integer((json_int_t)number);
    }
    char digits[24];
    (void)snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    return json_string(digits);
}

void json_set(json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new(object, name, value) != 0) {
        complain("out of memory", NULL);
        exit(EXIT_CODE_INTERNAL);
    }
}

json_t *json_of_field(const struct tenure_field *field)
{
    if (field->text != NULL) {
        return json_text(field->text);
    }
    return field->is_flag ? json_boolean(field->number != 0) : json_number(field->number);
}

/* As text where they are one; else NAME_hex. Nothing when there are none. */
void json_set_bytes(json_t *object, const char *name, const void *bytes, size_t len)
{
    if (bytes == NULL) {
        return;
    }
    json_t *text = json_stringn(bytes, len);
    if (text != NULL) {
        json_set(object, name, text);
        return;
    }
    char *hex = malloc(2 * len + 1);
    if (hex == NULL) {
        complain("out of memory", NULL);
        exit(EXIT_CODE_INTERNAL);
    }
    for (size_t i = 0; i < len; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)bytes)[i]);
    }
    char hex_name[64];
    (void)snprintf(hex_name, sizeof hex_name, "%s_hex", name);
    json_set(object, hex_name, json_text(hex));
    free(hex);
}

void json_set_position(json_t *object, const struct tenure_reply *reply)
{
    json_set(object, "index", json_number(reply->index));
    json_set(object, "place", json_number(reply->place));
    json_set(object, "clock_ms", json_number(reply->clock_ms));
    if (reply->stale) {
        json_set(object, "stale", json_true());
    }
}

void json_write(const json_t *value)
{
    (void)json_dump_callback(value, on_json, stdout, JSON_ENSURE_ASCII);
}

void json_print(json_t *object)
{
    json_write(object);
    fputc('\n', stdout);
    json_decref(object);
}

void show_fields(const struct cli *cli, const struct tenure_reply *reply)
{
    if (cli->options.json) {
        json_t *object = json_object();
        for (size_t i = 0; i < reply->field_count; i++) {
            json_set(object, reply->fields[i].name, json_of_field(&reply->fields[i]));
        }
        json_print(object);
        return;
    }
    for (size_t i = 0; i < reply->field_count; i++) {
        print_text(stdout, reply->fields[i].name);
        fputs(": ", stdout);
        print_field_value(stdout, &reply->fields[i]);
        fputc('\n', stdout);
    }
}

void print_field_value(FILE *out, const struct tenure_field *field)
{
    if (field->text != NULL) {
        print_text(out, field->text);
    } else if (field->is_flag) {
        fputs(field->number != 0 ? "yes" : "no", out);
    } else {
        fprintf(out, "%llu", (unsigned long long)field->number);
    }
}

/* `doubled`: a backslash of the text itself is told from ours. Not in messages, whose values were
 * escaped by the node already. */
static void print_escaped(FILE *out, const void *bytes, size_t len, bool doubled)
{
    const unsigned char *base = bytes;
    for (size_t at = 0; at < len;) {
        uint32_t code = 0;
        unsigned size = decode(base + at, len - at, &code);
        if (size == 0) {
            fprintf(out, "\\x%02x", base[at]);
            at++;
            continue;
        }
        if (code == '\\' && doubled) {
            fputs("\\\\", out);
        } else if (!dangerous(code)) {
            (void)fwrite(base + at, 1, size, out);
        } else if (code < 0x80) {
            fprintf(out, "\\x%02x", (unsigned)code);
        } else {
            fprintf(out, "\\u{%04x}", (unsigned)code);
        }
        at += size;
    }
}

/* The code point at `bytes`: its length and value; 0 when the bytes are not UTF-8 (RFC 3629). */
static unsigned decode(const unsigned char *bytes, size_t len, uint32_t *out_code)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned size = bytes[0] < 0x80   ? 1
                    : bytes[0] < 0xc2 ? 0
                    : bytes[0] < 0xe0 ? 2
                    : bytes[0] < 0xf0 ? 3
                    : bytes[0] < 0xf5 ? 4
                                      : 0;
    if (size == 0 || size > len) {
        return 0;
    }
    uint32_t code = size == 1 ? bytes[0] : bytes[0] & (0xffu >> (size + 1));
    for (unsigned i = 1; i < size; i++) {
        if ((bytes[i] & 0xc0) != 0x80) {
            return 0;
        }
        code = code << 6 | (bytes[i] & 0x3fu);
    }
    bool valid = code >= smallest[size] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
    *out_code = code;
    return valid ? size : 0;
}

/* Controls, what changes the direction of writing, line separators, and what cannot be seen. */
static bool dangerous(uint32_t code)
{
    return code < 0x20 || (code >= 0x7f && code <= 0x9f) || code == 0x061c || code == 0x200e ||
           code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069) || code == 0xfeff ||
           (code >= 0xfff9 && code <= 0xfffb) || (code >= 0xe0000 && code <= 0xe007f);
}

/* DEL is ASCII and would be printed as it is. It can only stand inside a text. */
static int on_json(const char *text, size_t len, void *ctx)
{
    for (size_t at = 0; at < len;) {
        const char *del = memchr(text + at, 0x7f, len - at);
        size_t plain = del == NULL ? len - at : (size_t)(del - (text + at));
        (void)fwrite(text + at, 1, plain, ctx);
        at += plain;
        if (del != NULL) {
            fputs("\\u007f", ctx);
            at++;
        }
    }
    return 0;
}
