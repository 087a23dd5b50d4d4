#!/bin/bash
# How scripts/setup finds the address of the backports in sources of both formats: each case feeds
# it a file and compares what it would write.
set -uo pipefail
# shellcheck source=/dev/null
. "$(dirname "$0")/../../scripts/setup"
set +e
failed=0

# expect NAME FUNCTION INPUT OUTPUT
expect() {
    local name=$1 function=$2 came
    echo "[ RUN      ] sources__$name"
    came=$(printf '%b' "$3" | "$function" bookworm)
    if [ "$came" = "$(printf '%b' "$4")" ]; then
        echo "[       OK ] sources__$name"
    else
        echo "    expected $4"
        echo "    came     $came"
        echo "[  FAILED  ] sources__$name"
        failed=1
    fi
}

head='Types: deb\nSuites: bookworm-backports\nComponents: main\n'
main='Types: deb\nSuites: bookworm\nComponents: main\n'
expect deb822_keeps_address_and_key backports_from_deb822 \
    "${main}URIs: http://a/debian\nSigned-By: /k\n" \
    "${head}URIs: http://a/debian\nSigned-By: /k"
expect deb822_suite_among_others backports_from_deb822 \
    'Types: deb\nSuites: bookworm-updates bookworm\nComponents: contrib main\nURIs: http://a' \
    "${head}URIs: http://a"
expect deb822_first_fitting_stanza backports_from_deb822 \
    "Types: deb\nURIs: http://s\nSuites: bookworm-security\n\n#\n${main}URIs: http://a\n\n$main" \
    "${head}URIs: http://a"
expect deb822_folded_fields backports_from_deb822 \
    "${main}URIs: http://a\n http://b\nSigned-By:\n -----BEGIN\n .\n abc" \
    "${head}URIs: http://a\n http://b\nSigned-By:\n -----BEGIN\n .\n abc"
expect deb822_skips_disabled backports_from_deb822 "${main}URIs: http://a\nEnabled: no\n" ''
expect deb822_skips_strangers backports_from_deb822 \
    'Types: deb\nURIs: http://x\nSuites: nodistro\nComponents: main\n' ''
expect line_skips_comments_and_sources backports_from_lines \
    '# deb http://c bookworm main\ndeb-src http://s bookworm main\ndeb http://a bookworm main x\n' \
    'deb http://a bookworm-backports main'
expect line_with_options backports_from_lines \
    'deb [signed-by=/k arch=amd64] http://a/ bookworm contrib main\ndeb http://b bookworm main\n' \
    'deb [signed-by=/k arch=amd64] http://a/ bookworm-backports main'
expect line_skips_updates_and_tabs backports_from_lines \
    'deb http://x bookworm-updates main\ndeb\tmirror+file:/m  bookworm\tmain\n' \
    'deb mirror+file:/m bookworm-backports main'
expect line_needs_main backports_from_lines 'deb http://a bookworm contrib\n' ''
exit "$failed"
