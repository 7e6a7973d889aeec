# shellcheck shell=bash
# Runs the tests and sums up what became of them. Sourced by build.sh.
#
# Test programs that mostly wait, for other programs or for an emulated machine, run beside the others, each group of them one
# after the other. What they say is shown when they are over. Who asks for some tests by name gets
# one run of cargo, as it comes.

# Groups of test programs that run beside the others.
BESIDE=("nic package" "rig inline packaging ancestors" "neighbour_linux")

TEST_FOLDER=
cleanup_tests() { [ -z "$TEST_FOLDER" ] || rm -rf "$TEST_FOLDER"; }
trap cleanup_tests EXIT

# run_tests [FILTER] [-- ARGUMENTS]  returns 1 if one has failed or none has run.
run_tests() {
    local status=0 passed failed skipped log
    TEST_FOLDER=$(mktemp -d)
    log=$TEST_FOLDER/all
    export PROXYENGINE_SKIP_FILE=$TEST_FOLDER/skipped
    touch "$PROXYENGINE_SKIP_FILE" "$log"
    if [ $# -eq 0 ]; then
        run_in_groups "$log" || status=$?
    else
        tests "$@" 2>&1 | tee "$log" || status=$?
    fi
    passed=$(count passed "$log")
    failed=$(count failed "$log")
    skipped=$(sort -u "$PROXYENGINE_SKIP_FILE" | grep -c . || true)
    if [ "$skipped" -gt 0 ]; then
        say ""
        say "skipped on this machine:"
        sort -u "$PROXYENGINE_SKIP_FILE" | sed 's/^/  /' >&2
    fi
    if [ "$status" -eq 0 ] && [ "$passed" -eq 0 ]; then
        say "no test has run: nothing matches '$*'"
        status=1
    fi
    [ "$status" -eq 0 ] || tell_of_sources test
    # A test that finds its machine lacking returns early, which the test program counts as passed.
    printf 'tests: %s passed, %s failed, %s skipped\n' $((passed - skipped)) "$failed" "$skipped"
    return "$status"
}

tests() { cargo test --workspace "${FEATURES[@]}" --no-fail-fast "$@"; }

# run_in_groups LOG  runs all tests, those of BESIDE beside the others.
run_in_groups() {
    local log=$1 status=0 group name
    local pids=() selected=() others=()
    tests --no-run || return
    for group in "${!BESIDE[@]}"; do
        selected=()
        for name in ${BESIDE[$group]}; do selected+=(--test "$name"); done
        tests "${selected[@]}" >"$TEST_FOLDER/$group" 2>&1 &
        pids+=($!)
    done
    for name in $(test_programs); do
        [[ " ${BESIDE[*]} " == *" $name "* ]] || others+=(--test "$name")
    done
    # First, as the tests of packages build some libraries anew.
    tests --doc 2>&1 | tee "$log" || status=$?
    tests --lib --bins --examples "${others[@]}" 2>&1 | tee -a "$log" || status=$?
    for group in "${!BESIDE[@]}"; do
        wait "${pids[$group]}" || status=$?
        tee -a "$log" <"$TEST_FOLDER/$group"
    done
    return "$status"
}

# Prints the name of each test program of the workspace.
test_programs() {
    local file
    for file in tests/*.rs tests/*/main.rs crates/*/tests/*.rs crates/*/tests/*/main.rs; do
        [ -e "$file" ] || continue
        file=${file##*tests/}
        file=${file%/main.rs}
        printf '%s\n' "${file%.rs}"
    done | sort -u
}

# count WORD LOG  sums a column of cargo's closing lines.
count() {
    sed -nE "s/^test result: .* ([0-9]+) $1.*/\\1/p" "$2" | awk '{ sum += $1 } END { print sum + 0 }'
}
