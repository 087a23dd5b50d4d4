/* Fuzz target: the text of a configuration file (node/config).
 *
 * Whatever is accepted must be printed to a text that gives the same configuration; whatever is
 * refused must be so in one printable line. Run it with -detect_leaks=0: libconfig itself forgets
 * the text at which it finds some syntax errors, and the process ends on those anyway. */
#include "node/config.h"

#include <stdlib.h>
#include <string.h>

#include "fsm/base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_line(const struct config_error *error)
{
    size_t len = strnlen(error->text, sizeof error->text);
    CHECK(len > 0 && len < sizeof error->text);
    for (size_t i = 0; i < len; i++) {
        CHECK(error->text[i] >= 0x20 && error->text[i] < 0x7f);
    }
}

static void check_round_trip(const struct config *config)
{
    struct config again;
    struct config_error error;
    struct buf text;
    buf_init(&text, CONFIG_TEXT_LEN_MAX);
    node_config_print(config, &text);
    CHECK(!buf_overflown(&text));
    node_config_init(&again);
    CHECK(node_config_text(&again, "again", buf_slice(&text), &error) == STATUS_OK);
    CHECK(memcmp(&again, config, sizeof again) == 0);
    buf_deinit(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct config config;
    struct config_error error = {.text = ""};
    node_config_init(&config);
    if (node_config_text(&config, "fuzz", slice_from(data, len), &error) != STATUS_OK) {
        check_line(&error);
        return 0;
    }
    check_round_trip(&config);
    if (node_config_validate(&config, &error) != STATUS_OK) {
        check_line(&error);
    }
    return 0;
}
