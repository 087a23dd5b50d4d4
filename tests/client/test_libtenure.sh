#!/bin/sh
# libtenure as a user meets it: installed into a folder of its own, found by pkg-config, linked from
# C (shared and static) and read by C++; it shows tenure_* and nothing else.
# usage: test_libtenure.sh BUILD_DIRECTORY C_COMPILER [FLAGS...]
set -eu
build=$1
cc=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() { echo "test_libtenure: $*" >&2; exit 1; }

cmake --install "$build" --prefix "$folder" --component libtenure >/dev/null
library=$(find "$folder" -name 'libtenure.so')
archive=$(find "$folder" -name 'libtenure.a')
pc=$(find "$folder" -name 'libtenure.pc')
[ -n "$library" ] && [ -n "$archive" ] && [ -n "$pc" ] || fail "something was not installed"

strange=$(nm -D --defined-only "$library" | awk '{print $3}' |
    grep -v -E '^(tenure_|TENURE_0)' || true)
[ -z "$strange" ] || fail "the shared library shows: $strange"
strange=$(nm -g --defined-only "$archive" | awk 'NF == 3 {print $3}' |
    grep -v -E '^(tenure_|__(asan|odr_asan|tsan|ubsan))' || true)
[ -z "$strange" ] || fail "the static library shows: $strange"
readelf -d "$library" | grep -q 'SONAME.*libtenure\.so\.0' ||
    fail "the soname is not libtenure.so.0"

cat > "$folder/user.c" <<'END'
#include <stdio.h>
#include <tenure.h>
#include <tenure_admin.h>
/* Names of ours that a user may have, too. */
int buf_init(void);
int buf_init(void) { return 7; }
const char *status_name(void);
const char *status_name(void) { return "the user's"; }
int main(void)
{
    struct tenure_options options = {.socket = "/nowhere/api.sock", .deadline_ms = 50};
    struct tenure_client *client = NULL;
    struct tenure_reply *reply = NULL;
    struct tenure_failure failure;
    if (tenure_client_create(&options, &client, &failure) != TENURE_ERROR_NONE) return 1;
    enum tenure_error error = tenure_members(client, NULL, &reply, &failure);
    printf("%s %s\n", tenure_error_name(error), failure.message);
    tenure_client_destroy(client);
    return error == TENURE_ERROR_UNAVAILABLE && buf_init() == 7 ? 0 : 1;
}
END
export PKG_CONFIG_PATH="${pc%/*}"
# The prefix at install time differs from the configured one.
flags() { pkg-config --define-prefix "$@" libtenure; }
# shellcheck disable=SC2046 # words are wanted
"$cc" "$@" -Wall -Werror $(flags --cflags) "$folder/user.c" -o "$folder/shared" $(flags --libs)
LD_LIBRARY_PATH="${library%/*}" "$folder/shared" || fail "the shared library does not work"
# shellcheck disable=SC2046
"$cc" "$@" -Wall -Werror $(flags --cflags) "$folder/user.c" -o "$folder/static" "$archive" \
    $(flags --static --libs-only-l | sed 's/-ltenure\b//')
"$folder/static" || fail "the static library does not work"
if command -v g++ >/dev/null; then
    echo '#include <tenure_admin.h>' > "$folder/user.cc"
    # shellcheck disable=SC2046
    g++ -Wall -Wextra -Wpedantic -Werror -fsyntax-only $(flags --cflags) "$folder/user.cc"
fi
echo "libtenure: shared, static and headers work"
