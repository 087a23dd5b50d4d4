/* Texts are allocated one by one: the lists are small and made only when somebody asks. */
#include "node/fields.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"

#define FIELDS_CAP_FIRST 64u

static struct proto_field *append(struct fields *fields, const char *name,
                                  enum proto_value_kind kind);

void fields_init(struct fields *fields)
{
    *fields = (struct fields){0};
}

void fields_deinit(struct fields *fields)
{
    for (uint32_t i = 0; i < fields->count; i++) {
        /* Owned here although a slice can't say so. */
        free((void *)(uintptr_t)fields->items[i].text.base);
    }
    free(fields->items);
    fields_init(fields);
}

void fields_add_u64(struct fields *fields, const char *name, uint64_t number)
{
    append(fields, name, PROTO_VALUE_KIND_U64)->number = number;
}

void fields_add_bool(struct fields *fields, const char *name, bool value)
{
    append(fields, name, PROTO_VALUE_KIND_BOOL)->number = value ? 1 : 0;
}

void fields_add_text(struct fields *fields, const char *name, const char *text)
{
    char *copy = strdup(text);
    CHECK(copy != NULL);
    append(fields, name, PROTO_VALUE_KIND_TEXT)->text = slice_text(copy);
}

void fields_add_id(struct fields *fields, const char *name, uint64_t id)
{
    char text[17];
    (void)snprintf(text, sizeof text, "%016" PRIx64, id);
    fields_add_text(fields, name, text);
}

static struct proto_field *append(struct fields *fields, const char *name,
                                  enum proto_value_kind kind)
{
    CHECK(fields->count < FIELDS_MAX);
    if (fields->count == fields->cap) {
        uint32_t cap = fields->cap == 0 ? FIELDS_CAP_FIRST : fields->cap * 2;
        struct proto_field *items = realloc(fields->items, cap * sizeof *items);
        CHECK(items != NULL);
        fields->items = items;
        fields->cap = cap;
    }
    struct proto_field *field = &fields->items[fields->count++];
    *field = (struct proto_field){.name = slice_text(name), .kind = kind};
    return field;
}
