/* A list of named values, as status, members and metrics answer them. Owns its texts. */
#ifndef NODE_FIELDS_H_
#define NODE_FIELDS_H_

#include <stdbool.h>
#include <stdint.h>

#include "client/protocol.h"

#define FIELDS_MAX 16384u

struct fields {
    struct proto_field *items; /* owned */
    uint32_t count;
    uint32_t cap;
};

void fields_init(struct fields *fields);
void fields_deinit(struct fields *fields);

/* Append one; `name` must be static, `text` is copied. */
void fields_add_u64(struct fields *fields, const char *name, uint64_t number);
void fields_add_bool(struct fields *fields, const char *name, bool value);
void fields_add_text(struct fields *fields, const char *name, const char *text);

/* Ids are shown as 16 hex digits everywhere, so that they can be told from counts. */
void fields_add_id(struct fields *fields, const char *name, uint64_t id);

#endif
