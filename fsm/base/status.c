/* Everything here is read off the one table in the header. */
#include "fsm/base/status.h"

#include <stdbool.h>
#include <stddef.h>

#include "fsm/base/check.h"

struct status_row {
    const char *name;
    const char *text;
    enum status_class class_;
    enum api_error error;
};

static const struct status_row rows[STATUS_COUNT] = {
#define STATUS_ROW(name_, class_name, error_name, text_) \
    [STATUS_##name_] = {#name_, text_, STATUS_CLASS_##class_name, API_ERROR_##error_name},
    STATUS_TABLE(STATUS_ROW)
#undef STATUS_ROW
};

static const struct status_row *row_of(enum status status);

const char *status_name(enum status status)
{
    return row_of(status)->name;
}

const char *status_text(enum status status)
{
    return row_of(status)->text;
}

enum status_class status_class(enum status status)
{
    return row_of(status)->class_;
}

enum api_error status_api_error(enum status status)
{
    return row_of(status)->error;
}

const char *api_error_name(enum api_error error)
{
    switch (error) {
    case API_ERROR_NONE:
        return "NONE";
    case API_ERROR_INVALID:
        return "INVALID";
    case API_ERROR_UNAVAILABLE:
        return "UNAVAILABLE";
    case API_ERROR_UNKNOWN:
        return "UNKNOWN";
    case API_ERROR_DENIED:
        return "DENIED";
    case API_ERROR_INCOMPATIBLE:
        return "INCOMPATIBLE";
    case API_ERROR_INTERNAL:
        return "INTERNAL";
    }
    CHECK(false);
    return NULL;
}

static const struct status_row *row_of(enum status status)
{
    CHECK((unsigned)status < STATUS_COUNT);
    return &rows[status];
}
