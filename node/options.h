/* The command line of tenured: which mode, and the configuration from file and options.
 *
 * `--config FILE` is read first, then the options go over it, wherever they stand. Options are
 * never abbreviated; each may be given once; nothing else may stand on the line. */
#ifndef NODE_OPTIONS_H_
#define NODE_OPTIONS_H_

#include "node/config.h"

enum options_mode {
    OPTIONS_MODE_RUN,
    OPTIONS_MODE_CHECK,   /* --check-config: validate, print, end */
    OPTIONS_MODE_HELP,    /* --help */
    OPTIONS_MODE_VERSION, /* --version */
};

/* STATUS_INVALID with one line in out_error: nothing was started or created. Reads the
 * configuration file, nothing else. */
NODISCARD enum status options_read(int argc, char **argv, struct config *out_config,
                                   enum options_mode *out_mode, struct config_error *out_error);

/* The text of --help. */
void options_help(struct buf *out);

/* The group that `socket_group` names, -1 for none; STATUS_INVALID where there is no such group. */
NODISCARD enum status options_group(const struct config *config, int64_t *out_gid,
                                    struct config_error *out_error);

#endif
