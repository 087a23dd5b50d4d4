/* A table of libraft's codes; the sentences behind the choices are in the header. */
#include "raft/status_map.h"

#include <raft.h>

enum status status_from_raft(int code)
{
    switch (code) {
    case 0:
        return STATUS_OK;
    case RAFT_NOMEM:
        return STATUS_NO_MEMORY;
    case RAFT_NOTLEADER:
        return STATUS_NOT_LEADER;
    case RAFT_LEADERSHIPLOST:
    case RAFT_CANCELED:
        return STATUS_LEADERSHIP_LOST;
    case RAFT_CANTCHANGE:
    case RAFT_BUSY:
        return STATUS_BUSY;
    case RAFT_NOSPACE:
        return STATUS_DISK_FULL;
    case RAFT_NOCONNECTION:
        return STATUS_NOT_CONNECTED;
    case RAFT_BADID:
    case RAFT_DUPLICATEID:
    case RAFT_DUPLICATEADDRESS:
    case RAFT_BADROLE:
    case RAFT_NOTFOUND:
    case RAFT_INVALID:
    case RAFT_CANTBOOTSTRAP:
    case RAFT_NAMETOOLONG:
        return STATUS_INVALID;
    case RAFT_TOOBIG:
        return STATUS_TOO_LARGE;
    case RAFT_MALFORMED:
    case RAFT_CORRUPT:
        return STATUS_CORRUPT;
    case RAFT_IOERR:
        return STATUS_IO;
    case RAFT_UNAUTHORIZED:
        return STATUS_DENIED;
    default:
        return STATUS_INTERNAL; /* SHUTDOWN and TOOMANY among them: nothing to retry */
    }
}

bool status_raft_apply_refused(int code)
{
    return code == RAFT_NOTLEADER || code == RAFT_NOSPACE || code == RAFT_NOMEM;
}
