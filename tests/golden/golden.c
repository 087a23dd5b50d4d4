/* Small files, read whole; a line is found by its name. Rewriting keeps the order of the calls. */
#include "tests/golden/golden.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "fsm/base/buf.h"

#define FILE_LEN_MAX ((size_t)64 * 1024 * 1024)
#define PATH_LEN_MAX 4096

struct golden {
    char path[PATH_LEN_MAX];
    struct buf text; /* of the file, or what will be written */
    bool write;
    size_t asked; /* lines that were asked for */
};

static void read_file(struct golden *golden);
static struct slice line_of(const struct golden *golden, const char *name);
static void append_hex(struct buf *out, struct slice bytes);
static size_t line_count(struct slice text);

struct golden *golden_open(const char *file)
{
    struct golden *golden = calloc(1, sizeof *golden);
    CHECK(golden != NULL);
    buf_init(&golden->text, FILE_LEN_MAX);
    int len = snprintf(golden->path, sizeof golden->path, "%s/%s", TENURE_GOLDEN_DIR, file);
    CHECK(len > 0 && (size_t)len < sizeof golden->path);
    golden->write = getenv("TENURE_GOLDEN_WRITE") != NULL;
    if (!golden->write) {
        read_file(golden);
    }
    return golden;
}

bool golden_matches(struct golden *golden, const char *name, struct slice bytes)
{
    golden->asked++;
    if (golden->write) {
        buf_append(&golden->text, name, strlen(name));
        buf_append(&golden->text, ": ", 2);
        append_hex(&golden->text, bytes);
        buf_append(&golden->text, "\n", 1);
        return true;
    }
    struct buf hex;
    buf_init(&hex, FILE_LEN_MAX);
    append_hex(&hex, bytes);
    struct slice expected = line_of(golden, name);
    bool equal = slice_equal(expected, buf_slice(&hex));
    if (!equal) {
        fprintf(stderr, "%s: %s\n  expected %.*s\n  got      %.*s\n", golden->path, name,
                (int)expected.len, expected.len == 0 ? "" : (const char *)expected.base,
                (int)hex.len, hex.len == 0 ? "" : (const char *)hex.base);
    }
    buf_deinit(&hex);
    return equal;
}

bool golden_close(struct golden *golden)
{
    bool fine = true;
    if (golden->write) {
        FILE *file = fopen(golden->path, "w");
        fine = file != NULL &&
               fwrite(golden->text.base, 1, golden->text.len, file) == golden->text.len;
        fine = file != NULL && fclose(file) == 0 && fine;
    } else if (line_count(buf_slice(&golden->text)) != golden->asked) {
        fprintf(stderr, "%s: has lines that no test asks for\n", golden->path);
        fine = false;
    }
    buf_deinit(&golden->text);
    free(golden);
    return fine;
}

static void read_file(struct golden *golden)
{
    FILE *file = fopen(golden->path, "r");
    if (file == NULL) {
        fprintf(stderr, "%s: cannot be read\n", golden->path);
        return;
    }
    char chunk[4096];
    size_t len;
    while ((len = fread(chunk, 1, sizeof chunk, file)) > 0) {
        buf_append(&golden->text, chunk, len);
    }
    (void)fclose(file);
}

/* What follows "name: " on its line; empty when there is no such line. */
static struct slice line_of(const struct golden *golden, const char *name)
{
    struct slice rest = buf_slice(&golden->text);
    size_t name_len = strlen(name);
    while (rest.len > 0) {
        const uint8_t *end = memchr(rest.base, '\n', rest.len);
        size_t len = end == NULL ? rest.len : (size_t)(end - rest.base);
        if (len > name_len + 2 && memcmp(rest.base, name, name_len) == 0 &&
            memcmp(rest.base + name_len, ": ", 2) == 0) {
            return slice_from(rest.base + name_len + 2, len - name_len - 2);
        }
        size_t skip = end == NULL ? len : len + 1;
        rest = slice_from(rest.base + skip, rest.len - skip);
    }
    return slice_from(NULL, 0);
}

static void append_hex(struct buf *out, struct slice bytes)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes.len; i++) {
        buf_append_u8(out, (uint8_t)digits[bytes.base[i] >> 4]);
        buf_append_u8(out, (uint8_t)digits[bytes.base[i] & 0x0f]);
    }
}

static size_t line_count(struct slice text)
{
    size_t count = 0;
    for (size_t i = 0; i < text.len; i++) {
        count += text.base[i] == '\n' ? 1 : 0;
    }
    return count;
}
