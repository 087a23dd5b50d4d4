/* The words for what types.h names; the protocol speaks them, logs and people read them. */
#include "fsm/types.h"

#include "fsm/base/check.h"

#define WORD_COUNT(words) (sizeof(words) / sizeof(words)[0])

static const char *const outcome_words[] = {
    [OUTCOME_KIND_GRANTED] = "GRANTED",
    [OUTCOME_KIND_HELD] = "HELD",
    [OUTCOME_KIND_TEARDOWN] = "TEARDOWN",
    [OUTCOME_KIND_GRACE] = "GRACE",
    [OUTCOME_KIND_RENEWED] = "RENEWED",
    [OUTCOME_KIND_LAPSED] = "LAPSED",
    [OUTCOME_KIND_LOST] = "LOST",
    [OUTCOME_KIND_REESTABLISHED] = "REESTABLISHED",
    [OUTCOME_KIND_RELEASED] = "RELEASED",
    [OUTCOME_KIND_NOT_OWNER] = "NOT_OWNER",
    [OUTCOME_KIND_STALE] = "STALE",
    [OUTCOME_KIND_MISMATCH] = "MISMATCH",
    [OUTCOME_KIND_UNAVAILABLE] = "UNAVAILABLE",
    [OUTCOME_KIND_UNKNOWN] = "UNKNOWN",
};

static const char *const reason_words[] = {
    [END_REASON_RELEASED] = "released", [END_REASON_EXPIRED] = "expired",
    [END_REASON_TAKEN] = "taken",       [END_REASON_SETTLED] = "settled",
    [END_REASON_PURGED] = "purged",     [END_REASON_RESTORED] = "restored",
    [END_REASON_TEARDOWN] = "teardown",
};

static const char *const state_words[] = {[LEASE_STATE_OWN] = "own", [LEASE_STATE_DEL] = "del"};

static const char *const limit_words[] = {
    [LIMIT_KIND_NONE] = "none",
    [LIMIT_KIND_LEASES] = "leases",
    [LIMIT_KIND_LEASES_PER_NAMESPACE] = "leases_per_namespace",
};

static const char *word_of(const char *const *words, size_t count, size_t number);
static bool number_of(const char *const *words, size_t count, struct slice word,
                      size_t *out_number);

const char *outcome_kind_name(enum outcome_kind kind)
{
    return word_of(outcome_words, WORD_COUNT(outcome_words), (size_t)kind);
}

const char *end_reason_name(enum end_reason reason)
{
    return word_of(reason_words, WORD_COUNT(reason_words), (size_t)reason);
}

const char *lease_state_name(enum lease_state state)
{
    return word_of(state_words, WORD_COUNT(state_words), (size_t)state);
}

const char *limit_kind_name(enum limit_kind kind)
{
    return word_of(limit_words, WORD_COUNT(limit_words), (size_t)kind);
}

bool outcome_kind_of(struct slice word, enum outcome_kind *out_kind)
{
    size_t number;
    bool known = number_of(outcome_words, WORD_COUNT(outcome_words), word, &number);
    if (known) {
        *out_kind = (enum outcome_kind)number;
    }
    return known;
}

bool end_reason_of(struct slice word, enum end_reason *out_reason)
{
    size_t number;
    bool known = number_of(reason_words, WORD_COUNT(reason_words), word, &number);
    if (known) {
        *out_reason = (enum end_reason)number;
    }
    return known;
}

bool lease_state_of(struct slice word, enum lease_state *out_state)
{
    size_t number;
    bool known = number_of(state_words, WORD_COUNT(state_words), word, &number);
    if (known) {
        *out_state = (enum lease_state)number;
    }
    return known;
}

bool limit_kind_of(struct slice word, enum limit_kind *out_kind)
{
    size_t number;
    bool known = number_of(limit_words, WORD_COUNT(limit_words), word, &number);
    if (known) {
        *out_kind = (enum limit_kind)number;
    }
    return known;
}

static const char *word_of(const char *const *words, size_t count, size_t number)
{
    CHECK(number < count && words[number] != NULL);
    return words[number];
}

static bool number_of(const char *const *words, size_t count, struct slice word, size_t *out_number)
{
    for (size_t i = 0; i < count && word.base != NULL; i++) {
        if (words[i] != NULL && slice_equal(word, slice_text(words[i]))) {
            *out_number = i;
            return true;
        }
    }
    return false;
}
