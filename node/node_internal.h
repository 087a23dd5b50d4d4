/* What the files of the composition root share; nobody else includes it. */
#ifndef NODE_NODE_INTERNAL_H_
#define NODE_NODE_INTERNAL_H_

#include "node/api.h"
#include "node/config.h"
#include "node/dispatch.h"
#include "node/fields.h"
#include "node/link.h"
#include "node/log.h"
#include "node/loop.h"
#include "node/node.h"
#include "node/peers.h"
#include "node/service.h"
#include "node/small_file.h"
#include "raft/replica.h"

enum node_phase {
    NODE_PHASE_OPENING,
    NODE_PHASE_RUNNING,
    NODE_PHASE_TRANSFERRING, /* leadership is handed over */
    NODE_PHASE_DRAINING,     /* what waits is answered */
    NODE_PHASE_CLOSING,
};

struct node {
    struct config config;
    struct node_callbacks callbacks;
    struct loop *loop;
    struct log *log;
    struct replica *replica;
    struct dispatch *dispatch;
    struct links *links;
    struct api *api;
    struct service *service;
    struct loop_timer *timer;  /* whatever dispatcher and replica want next */
    struct loop_timer *upkeep; /* joining, and the peers file */
    struct list founders; /* who asked for a cluster and waits for its birth */
    uint32_t founder_count;
    struct peers peers;
    struct small_file *peers_file;
    enum node_phase phase;
    enum node_exit exit;
    bool failed;        /* fail-stop happened */
    bool founding;      /* the birth of a cluster is under way here */
    bool admitted;      /* a leader said that this node is a member */
    struct replica_member told[REPLICA_MEMBERS_MAX]; /* by a leader, for want of a configuration */
    unsigned told_count;
    bool peers_unsaved;
    unsigned parts_open; /* that close_all waits for */
    uint64_t start_ns;
    uint64_t transfer_deadline_ns;
    struct replica_view view; /* as of the last on_view, to log what changed */
};

/* node_cluster.c: what the token counter of a new cluster is raised to; 0 where the wall clock
 * can't be right. */
uint64_t node_token_floor(void);

/* node.c: tell the dispatcher of a stall before the input that waited in it is judged. */
void node_tell_stall(struct node *node);

/* node_cluster.c: links, peers, joining, birth. */
void node_read_peers(struct node *node);
void node_save_peers(struct node *node);
struct link_callbacks node_link_callbacks(struct node *node);
struct service_node node_service_node(struct node *node);

/* Tell links who we are; while we belong to no cluster, look for one where seeds were given. */
void node_announce_self(struct node *node);
void node_ask_to_be_admitted(struct node *node);

/* Tell everybody where nodes are and, as a leader, what each is to the cluster. */
void node_tell_peers(struct node *node);

/* A founding was begun, here or before the last end of this node. */
void node_note_founding(struct node *node);

/* At the end of a turn: the birth that was waited for may be applied now. */
void node_answer_founders(struct node *node);

/* Who still waits won't hear how it ends. */
void node_end_founders(struct node *node);

/* node_report.c: what a node says of itself. */
void node_report_hello(void *ctx, struct fields *out_fields);
void node_report_status(void *ctx, struct fields *out_fields);
void node_report_metrics(void *ctx, struct fields *out_fields);
void node_report_members(void *ctx, struct fields *out_fields, uint32_t *out_row_len);

/* "voter", "standby", "spare", "none". */
const char *node_role_name(enum replica_member_role role);

#endif
