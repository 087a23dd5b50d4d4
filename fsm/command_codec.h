/* Bytes <-> commands and entries, in MessagePack with a format version.
 *
 * An entry is self-describing, because libraft wants its length to be a multiple of 8 and hands it
 * back as bytes of which it knows nothing: a 24-byte header (magic, format version, length of the
 * body, CRC-32C of header and body, stamp, number of commands), the commands one after the other,
 * zeros up to a multiple of 8. Golden files in tests/golden pin every byte.
 *
 * A command's bytes are the same in an entry and in a forwarded frame. Decoding never trusts a
 * length, a count or a type, and ends with op_validate(). */
#ifndef FSM_COMMAND_CODEC_H_
#define FSM_COMMAND_CODEC_H_

#include "fsm/base/buf.h"
#include "fsm/command.h"

#define ENTRY_FORMAT_VERSION 1u

/* Append the bytes of one command. The command must be valid (CHECK). */
void command_encode(const struct command *command, struct buf *out);

/* Scratch memory for what decoding lays out (keys of a command, commands of an entry). Reusable;
 * decoded slices borrow from the input bytes, decoded arrays from here. */
struct command_decoder;
struct command_decoder *command_decoder_create(void);
void command_decoder_destroy(struct command_decoder *decoder);

/* Exactly one command in `bytes`. STATUS_MALFORMED, STATUS_INVALID (breaks a rule), or OK.
 * *out_command is valid until the next use of the decoder and while `bytes` lives. */
NODISCARD enum status command_decode(struct command_decoder *decoder, struct slice bytes,
                                     struct command *out_command);

/* Close an entry: `commands` are the bytes of `command_count` encoded commands. Appends header,
 * commands and padding; the result's length is a multiple of 8 and at most ENTRY_LEN_MAX
 * (CHECK). */
void entry_encode(uint64_t stamp_ms, struct slice commands, uint32_t command_count,
                  struct buf *out);

/* Length of the entry that entry_encode would make of so many bytes of commands. */
size_t entry_encoded_len(size_t commands_len);

/* STATUS_INCOMPATIBLE (*out_version holds the version met), STATUS_CORRUPT (checksum, length or
 * content), or OK. Lifetimes as for command_decode. */
NODISCARD enum status entry_decode(struct command_decoder *decoder, struct slice bytes,
                                   struct entry *out_entry, uint32_t *out_version);

#endif
