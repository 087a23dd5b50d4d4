/* One run of the simulator, or a few: prints a line each, exits 1 when a promise was broken. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/sim.h"

#define NS_PER_S 1e9

struct options {
    struct sim_config config;
    uint64_t seconds;
    uint64_t seeds; /* this many, from config.seed on */
    bool twice;     /* each seed again: the same hash or it is a failure */
};

static bool parse(int argc, char **argv, struct options *out_options);
static bool run(const struct options *options, uint64_t seed, uint64_t *out_hash);
static double seconds_now(void);

int main(int argc, char **argv)
{
    struct options options = {
        .config = {.seed = 1, .nodes = 4, .clients = 4, .keys = 12},
        .seconds = 30,
        .seeds = 1,
    };
    if (!parse(argc, argv, &options)) {
        (void)fprintf(stderr, "usage: sim [--seed S] [--seconds N] [--seeds N] [--nodes N] "
                              "[--clients N] [--keys N] [--stop-leader S] [--twice] [--trace]\n");
        return 2;
    }
    bool well = true;
    for (uint64_t i = 0; i < options.seeds && well; i++) {
        uint64_t seed = options.config.seed + i;
        uint64_t first = 0;
        uint64_t second = 0;
        well = run(&options, seed, &first);
        if (well && options.twice) {
            well = run(&options, seed, &second);
            if (well && first != second) {
                (void)printf("FAILED seed=%" PRIu64 ": played twice, two different runs\n", seed);
                well = false;
            }
        }
    }
    return well ? 0 : 1;
}

static bool parse(int argc, char **argv, struct options *out_options)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--twice") == 0) {
            out_options->twice = true;
            continue;
        }
        if (strcmp(argv[i], "--trace") == 0) {
            out_options->config.trace = true;
            continue;
        }
        if (i + 1 == argc) {
            return false;
        }
        char *end = NULL;
        uint64_t value = strtoull(argv[i + 1], &end, 10);
        if (*argv[i + 1] == '\0' || *end != '\0') {
            return false;
        }
        if (strcmp(argv[i], "--seed") == 0) {
            out_options->config.seed = value;
        } else if (strcmp(argv[i], "--seconds") == 0) {
            out_options->seconds = value;
        } else if (strcmp(argv[i], "--seeds") == 0) {
            out_options->seeds = value;
        } else if (strcmp(argv[i], "--nodes") == 0) {
            out_options->config.nodes = (unsigned)value;
        } else if (strcmp(argv[i], "--clients") == 0) {
            out_options->config.clients = (unsigned)value;
        } else if (strcmp(argv[i], "--keys") == 0) {
            out_options->config.keys = (unsigned)value;
        } else if (strcmp(argv[i], "--stop-leader") == 0) {
            out_options->config.stop_every_s = (unsigned)value;
        } else {
            return false;
        }
        i++;
    }
    return out_options->config.nodes >= 1 && out_options->config.nodes <= SIM_NODES_MAX;
}

static bool run(const struct options *options, uint64_t seed, uint64_t *out_hash)
{
    struct sim_config config = options->config;
    config.seed = seed;
    double began = seconds_now();
    struct sim *sim = sim_create(&config);
    if (sim->failure[0] == '\0') {
        sim_run(sim, options->seconds);
    }
    double wall = seconds_now() - began;
    struct sim_report report;
    sim_report(sim, &report);
    bool well = sim->failure[0] == '\0';
    double simulated = (double)(sim->clock.now_ns - SIM_START_NS) / NS_PER_S;
    (void)printf("%s seed=%" PRIu64 " simulated_s=%.1f per_wall_s=%.0f events=%" PRIu64
                 " entries=%" PRIu64 " calls=%" PRIu64 " granted=%" PRIu64 " refused=%" PRIu64
                 " reads=%" PRIu64 " due_waits=%" PRIu64 " forwards=%" PRIu64 " unknown=%" PRIu64
                 " unavailable=%" PRIu64 " settles=%" PRIu64 " stops=%" PRIu64
                 " longest_ms=%" PRIu64 " hash=%016" PRIx64 "\n",
                 well ? "ok" : "FAILED", seed, simulated, simulated / wall, report.events,
                 report.entries, report.calls, report.granted, report.refused, report.reads,
                 report.reads_waited_due, report.forwards, report.unknown, report.unavailable,
                 report.settles, report.stops, report.longest_ms, report.hash);
    if (!well) {
        (void)printf("%s\nagain: tests/sim/run --seed %" PRIu64 " --seconds %" PRIu64
                     " --nodes %u --clients %u --keys %u --stop-leader %u\n",
                     sim->failure, seed, options->seconds, config.nodes, config.clients,
                     config.keys, config.stop_every_s);
    }
    (void)fflush(stdout);
    *out_hash = report.hash;
    sim_destroy(sim);
    return well;
}

static double seconds_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / NS_PER_S;
}
