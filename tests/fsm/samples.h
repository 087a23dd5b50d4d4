/* Named commands and results, one of each kind and more: what golden files pin, what decoders are
 * tried with, and what damage is done to. */
#ifndef TESTS_FSM_SAMPLES_H_
#define TESTS_FSM_SAMPLES_H_

#include "fsm/command.h"
#include "fsm/result.h"

struct sample_command {
    const char *name;
    struct command command;
};

struct sample_result {
    const char *name;
    struct result result;
};

/* Static tables. */
const struct sample_command *sample_commands(size_t *out_count);
const struct sample_result *sample_results(size_t *out_count);

/* A static slice of a text; usable in initialisers. */
#define TEXT(literal) {(const uint8_t *)("" literal ""), sizeof(literal) - 1}

#endif
