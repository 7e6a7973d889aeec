#!/usr/bin/env bash
# The one entry to the project: builds, shows, tests, runs and measures it. What is missing is installed and said.
set -euo pipefail
ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
cd "$ROOT"
# shellcheck source=scripts/common.sh
. scripts/common.sh
# shellcheck source=scripts/packages.sh
. scripts/packages.sh
# shellcheck source=scripts/profile.sh
. scripts/profile.sh
# shellcheck source=scripts/package.sh
. scripts/package.sh
# shellcheck source=scripts/image.sh
. scripts/image.sh
# shellcheck source=scripts/manual.sh
. scripts/manual.sh
# shellcheck source=scripts/tests.sh
. scripts/tests.sh

usage() {
    cat <<'USAGE'
usage: ./build.sh COMMAND [ARGUMENTS]

  demo [--json FILE] [--keep] [--af-xdp] [--stage-cycles[=SVG]] [--on RIG --config FILE]
                  raise the software rig, run the proxy on it with real Linux clients and servers, show what happened,
                  tear it down; ends with an error if one request reached the wrong server. Needs root.
  test [FILTER] [-- ARGUMENTS OF THE TEST PROGRAMS]
                  every test that this machine can run; what was skipped is listed with the reason. PROXYENGINE_LAB=0
                  leaves out those on emulated PCI cards, which take some minutes
  build [--no-pgo]
                  build proxyengine and trafficengine with all optimisation, and print where they are
  package [--json FILE] [--profile-data FILE] [--no-pgo] [--built FOLDER] [--out FOLDER]
                  build Debian packages of all programs, with the profile beside them; --profile-data builds with such a one.
                  --json builds again in a copy under another name, compares, and writes what was made; --built makes
                  packages of programs that are there
  image [--debs FOLDER] [--out FOLDER]
                  make container images of these packages, without a shell or compiler in them (docs/containers.md). Needs root.
  run [--no-pgo] FILE [OPTIONS OF proxyengine run]
                  build likewise and run the engine with this configuration
  bench [--no-pgo] [NAME [ARGUMENTS]]
                  run a benchmark; without a name, list them
  nic-lab [--only PART] [--json FILE] [--transcript FILE] [--keep]
                  go a user's way on PCI cards that QEMU emulates: bind, run, pull the cable, give back; and what cards and
                  IOMMUs do wrong (docs/nic.md). Needs root.
  fuzz [TARGET | list] [--minutes M]
                  fuzz one target, or each for a while; needs a nightly toolchain and cargo-fuzz
  fuzz sim [--minutes M] [--seed N]
                  simulate connections over bad links from new seeds for a while, or from one seed again
  docs            the manual as a book with a search, target/manual/book/index.html; the first time mdbook is built for it
  lint            formatting, clippy, also without DPDK, documentation, shell scripts and container files, without warnings
  clean           remove what was built, and a demo or a machine of nic-lab that was kept

Rust stable is the one thing that has to be there. Debian packages that are missing are installed, with their services
kept from starting; PROXYENGINE_NO_INSTALL=1 keeps this script from installing anything. What is optimised is built twice,
to learn from a run of the first (profile-guided optimisation); --no-pgo does without, for programs that are slower.
USAGE
}

need_cargo() {
    have cargo || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    have cargo || die "cargo is missing: install Rust stable (https://rustup.rs), then run this again"
    local wanted had
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    had=$(rustc --version | cut -d ' ' -f 2)
    [ "$(printf '%s\n' "$wanted" "$had" | sort -V | head -n 1)" = "$wanted" ] ||
        die "Rust $had is too old, as Debian's own is: $wanted or later is needed (rustup update stable, or https://rustup.rs)"
}

# install PURPOSE PACKAGE…, unless the user keeps us from it: then it is for cargo or the test to say what is missing.
install() {
    [ -z "${PROXYENGINE_NO_INSTALL:-}" ] || return 0
    ensure_packages "$@"
}

need_build() {
    need_cargo
    install "to build" "${BUILD_PACKAGES[@]}" || die "the packages to build with are missing"
}

# Sets FEATURES: mmproxy's inline mode needs more than the rest, and is left out where that is not there.
FEATURES=()
with_inline() {
    install "for mmproxy's inline mode" "${INLINE_PACKAGES[@]}" || true
    if have clang && have make && [ -e /usr/include/gelf.h ] && [ -e /usr/include/zlib.h ]; then
        FEATURES=(--features mmproxy/inline)
    else
        say "mmproxy: built without inline mode, which needs: ${INLINE_PACKAGES[*]}"
    fi
}

# Without optimisation: a first look waits for the compiler, not for packets.
cmd_demo() { run_rig demo "the demo" demo "${DEMO_PACKAGES[*]}" "$@"; }

cmd_nic_lab() { run_rig nic-lab "the NIC lab" dev "${LAB_PACKAGES[*]}" "$@"; }

# run_rig NAME WHAT PROFILE PACKAGES [ARGUMENTS]  builds the engine and the programs of the rig with a profile of cargo, and
# runs one of these as root.
run_rig() {
    local name=$1 what=$2 profile=$3 packages=$4 as_root built
    shift 4
    need_build
    # shellcheck disable=SC2086  # one word for each package
    install "for $what" $packages || die "the packages that $what is made of are missing"
    as_root=$(root_prefix) || die "$what makes network namespaces, for which it must be root"
    say "$name: building; the first time that takes a minute or more"
    shown_cargo "$name" build --profile "$profile" -p proxyengine -p rig --bins
    [ "$profile" = dev ] && built=$(target_dir)/debug || built=$(target_dir)/$profile
    cd "$CALLED_FROM"
    # shellcheck disable=SC2086  # empty or two words
    $as_root "$built/rig" "$name" --engine "$built/proxyengine" "$@"
}

# Cargo's progress is for people; a log wants the errors only.
quiet_cargo() { if [ -t 2 ]; then cargo "$@"; else cargo "$@" --quiet; fi; }

# Seconds between two lines of progress.
PROGRESS_EVERY=10

# shown_cargo NAME ARGUMENTS  likewise, with a line of progress now and then for who reads a log as it grows.
shown_cargo() {
    local name=$1 log ticker status=0
    shift
    if [ -t 2 ]; then
        cargo "$@" || status=$?
        [ "$status" -eq 0 ] || tell_of_sources "$name"
        return "$status"
    fi
    log=$(mktemp)
    tell_progress "$name" "$log" &
    ticker=$!
    CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=100 CARGO_TERM_COLOR=never cargo "$@" 2>"$log" || status=$?
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    # What the compiler has said; its bars end with a carriage return.
    if [ "$status" -ne 0 ]; then
        sed -e 's/.*\r//' -e '/^ *\(Compiling\|Downloaded\|Fresh\) /d' "$log" >&2
        tell_of_sources "$name"
    fi
    rm -f "$log"
    return "$status"
}

# Says what a build that has failed wanted, if that is sources that are not here and cannot be had, whatever cargo calls that.
tell_of_sources() {
    CARGO_NET_RETRY=0 cargo fetch --quiet --locked --target "$(rustc -vV | sed -n 's/^host: //p')" >/dev/null 2>&1 ||
        say "$1: the sources of some libraries are not here: is there a network, or a proxy to name in https_proxy?"
}

# Runs until it is killed: how many of its parts cargo has built.
tell_progress() {
    local began=$SECONDS parts
    while sleep "$PROGRESS_EVERY"; do
        parts=$(tr '\r' '\n' <"$2" | sed -n 's/.*\] \([0-9]*\)\/\([0-9]*\).*/\1 of \2 parts built/p' | tail -n 1)
        say "$1: compiling for $((SECONDS - began)) s: ${parts:-fetching sources}"
    done
}

target_dir() { printf '%s' "${CARGO_TARGET_DIR:-$ROOT/target}"; }

cmd_test() {
    need_build
    # Without these the tests that need them skip themselves, and say so.
    install "for the tests" "${TEST_PACKAGES[@]}" || true
    [ "${PROXYENGINE_LAB:-}" = 0 ] || install "for the emulated cards in tests/nic" "${LAB_PACKAGES[@]}" || true
    with_inline
    run_tests "$@"
}

# build_optimised PACKAGE…  builds their programs with a profile, below PROFILED_TARGET.
build_optimised() {
    use_profile
    quiet_cargo build --release "${@/#/--package=}" --bins --target-dir "$PROFILED_TARGET"
}

cmd_build() {
    need_build
    build_optimised proxyengine trafficengine
    printf '%s\n' "$PROFILED_TARGET"/release/{proxyengine,trafficengine}
}

cmd_package() {
    local json='' profile='' out='' built='' reproducible=true
    while [ $# -gt 0 ]; do
        [ $# -gt 1 ] || die "package: $1 needs a value"
        case $1 in
        --json) json=$(cd "$CALLED_FROM" && readlink -m "$2") ;;
        --profile-data) profile=$(cd "$CALLED_FROM" && readlink -e "$2") || die "package: there is no file $2" ;;
        --built) built=$(cd "$CALLED_FROM" && readlink -e "$2") || die "package: there is no folder $2" ;;
        --out) out=$(cd "$CALLED_FROM" && readlink -m "$2") ;;
        *) die "package: unknown option '$1'" ;;
        esac
        shift 2
    done
    out=${out:-$(target_dir)/package/debs}
    need_build
    install "to package" "${PACKAGE_PACKAGES[@]}" || die "the packages to package with are missing"
    if [ -n "$built" ]; then
        make_packages "$built" "$out"
    else
        package_optimised
    fi
    printf '%s\n' "$out"/*
    [ "$reproducible" = true ] || die "package: built elsewhere, the packages are not the same"
}

# The part of cmd_package that compiles; uses and sets its variables.
package_optimised() {
    with_inline
    if [ -z "$profile$NO_PGO" ]; then
        profile=$(target_dir)/profile/$(profile_key).profdata
        have_profile "$profile" || die "package: no profile could be taken; --no-pgo does without"
    fi
    [[ ! "$ROOT$profile" =~ [[:space:]] ]] || die "package: the folder's name has blanks, which the compiler's flags cannot have"
    say "package: building"
    built=$(build_packaged "$profile")
    without_paths "$built" || die "package: the programs would differ on another machine"
    rm -rf "$out"
    make_packages "$built" "$out"
    if [ -n "$profile" ]; then
        cp "$profile" "$out/proxyengine_$("$built/proxyengine" --version | sed 's/.* //').profdata"
    fi
    if [ -n "$json" ]; then
        is_reproducible "$out" "$profile" || reproducible=false
        describe_packages "$out" "$reproducible" >"$json"
    fi
}

cmd_run() {
    [ $# -ge 1 ] || die "run: which configuration? e.g. ./build.sh run config/x710.toml"
    need_build
    # The file is named relative to where the user is.
    local file=$1 as_root
    shift
    file=$(cd "$CALLED_FROM" && readlink -m "$file")
    say "run: building"
    build_optimised proxyengine
    as_root=$(root_prefix) || {
        say "run: not root; network devices will refuse"
        as_root=
    }
    cd "$CALLED_FROM"
    # shellcheck disable=SC2086
    exec $as_root "$PROFILED_TARGET/release/proxyengine" run "$file" "$@"
}

# Prints PACKAGE NAME PROGRAM for each benchmark of the workspace. A program has that of its own name, or those that
# [package.metadata.benches] names for it.
benches() {
    local manifest
    for manifest in Cargo.toml crates/*/Cargo.toml; do
        awk '
            { is_title = /^\[/; gsub(/[][",]/, "") }
            is_title { table = $1 }
            table == "package" && $1 == "name" { package = $3 }
            table == "package.metadata.benches" && $2 == "=" { program = $1; sub(/.*= /, ""); named[program] = $0 }
            table == "bench" && $1 == "name" {
                count = split(($3 in named) ? named[$3] : $3, names)
                for (i = 1; i <= count; i++) print package, names[i], $3
            }' "$manifest"
    done
}

cmd_bench() {
    local name=${1:-} package program executable called=()
    AS_ROOT=
    PEERS=()
    if [ -z "$name" ]; then
        benches | awk '{ print $2 "  (" $1 ")" }'
        return
    fi
    shift
    read -r package program < <(benches | awk -v name="$name" '$2 == name { print $1, $3 }') ||
        die "bench: no benchmark '$name'; there are: $(benches | cut -d' ' -f2 | tr '\n' ' ')"
    need_build
    # The benches of the engine measure what users are given.
    if [ "$package" = proxyengine ] && [ "$name" != training ]; then
        use_profile
    else
        PROFILED_TARGET=$(target_dir)
    fi
    say "bench: building"
    case $name in
    peers) with_peers ;;
    # Who cannot be installed is left out, and named.
    mmproxy)
        install "for the proxies beside mmproxy" "${MMPROXY_PEER_PACKAGES[@]}" || true
        with_inline
        ;;
    libproxyproto) install "to count system calls" strace || true ;;
    esac
    # Run directly, so that files named on the command line are the user's, not relative to the package.
    executable=$(bench_program "$package" "$program" --target-dir "$PROFILED_TARGET" "${FEATURES[@]}") ||
        die "bench: cargo has built no program for '$name'"
    [ "$program" = "$name" ] || called=("$name")
    cd "$CALLED_FROM"
    # shellcheck disable=SC2086  # empty or two words
    CRITERION_HOME="$(target_dir)/criterion" exec $AS_ROOT "$executable" "${called[@]}" --bench "${PEERS[@]}" "$@"
}

# bench_program PACKAGE PROGRAM [ARGUMENTS OF CARGO]: builds a program of benchmarks and prints where it is.
bench_program() {
    local package=$1 program=$2 executable
    shift 2
    # Other programs of the package are told of as well.
    executable=$(cargo bench --quiet -p "$package" --bench "$program" --no-run --message-format=json "$@" |
        grep -F '"kind":["bench"]' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    [ -x "$executable" ] && printf '%s' "$executable"
}

# What `bench peers` needs beside itself: the other proxies, both programs built with all optimisation, and root.
with_peers() {
    install "for the proxies beside proxyengine" "${PEER_PACKAGES[@]}" || die "the other proxies are missing"
    AS_ROOT=$(root_prefix) || die "bench peers makes network namespaces, for which it must be root"
    build_optimised proxyengine trafficengine
    PEERS=(--proxyengine "$PROFILED_TARGET/release/proxyengine" --trafficengine "$PROFILED_TARGET/release/trafficengine")
    # The others are built without a profile: our own without one stands beside them.
    if [ "$PROFILED_TARGET" != "$(target_dir)" ]; then
        RUSTFLAGS=$PLAIN_RUSTFLAGS quiet_cargo build --release --package=proxyengine --bins
        PEERS+=(--proxyengine-no-pgo "$(target_dir)/release/proxyengine")
    fi
}

# component SUBCOMMAND COMPONENT: has rustup add that part of the toolchain, if it is missing.
component() {
    ! cargo "$1" --version >/dev/null 2>&1 || return 0
    [ -n "${PROXYENGINE_NO_INSTALL:-}" ] || ! have rustup || rustup --quiet component add "$2" || true
    cargo "$1" --version >/dev/null 2>&1 || die "lint: $2 is missing: rustup component add $2"
}

cmd_lint() {
    need_build
    component fmt rustfmt
    component clippy clippy
    install "to lint" "${LINT_PACKAGES[@]}" || true
    with_inline
    say "lint: formatting"
    cargo fmt --all -- --check
    say "lint: clippy"
    cargo clippy --quiet --workspace "${FEATURES[@]}" --all-targets -- -D warnings
    say "lint: the core and the engine without DPDK"
    cargo clippy --quiet -p splice -p proxyengine --no-default-features --all-targets -- -D warnings
    say "lint: documentation"
    RUSTDOCFLAGS='-D warnings' cargo doc --quiet --workspace "${FEATURES[@]}" --no-deps
    if have shellcheck; then
        say "lint: shell scripts"
        shellcheck -x ./*.sh scripts/*.sh scripts/nic-lab/*.sh .ci/run
    else
        say "lint: shell scripts not looked at: shellcheck is missing"
    fi
    lint_containers
    lint_libraries
    say "lint: clean"
}

# The version that is asked; building it without optimisation takes a minute, once for a clone.
CARGO_DENY=0.20.2

# Licences, origins and doubles of the libraries, as deny.toml has them. Returns success where the tool cannot be had.
lint_libraries() {
    local tools
    tools=$(target_dir)/tools/cargo-deny
    [ -x "$tools/bin/cargo-deny" ] || [ -n "${PROXYENGINE_NO_INSTALL:-}" ] ||
        CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --debug --locked --root "$tools" --target-dir "$tools/build" \
            "cargo-deny@$CARGO_DENY" >/dev/null 2>&1 || true
    rm -rf "$tools/build"
    if [ ! -x "$tools/bin/cargo-deny" ]; then
        say "lint: libraries not looked at: cargo-deny cannot be had (cargo install cargo-deny@$CARGO_DENY)"
        return 0
    fi
    say "lint: libraries"
    "$tools/bin/cargo-deny" --log-level error --locked check licenses bans sources
}

cmd_fuzz() {
    local target=all minutes=1 seed='' targets seeds
    case ${1:-} in '' | --*) ;; *) target=$1 && shift ;; esac
    while [ $# -gt 0 ]; do
        [[ ${2:-} =~ ^[0-9]+$ ]] || die "fuzz: $1 needs a number, not '${2:-}'"
        case $1 in
        --minutes) minutes=$2 ;;
        --seed) seed=$2 ;;
        *) die "fuzz: unknown option '$1'" ;;
        esac
        shift 2
    done
    if [ "$target" = sim ]; then
        fuzz_sim "$minutes" "$seed"
        return
    fi
    [ -z "$seed" ] || die "fuzz: --seed is for sim"
    [ -d fuzz ] || die "fuzz: there are no fuzz targets"
    need_build
    cargo +nightly --version >/dev/null 2>&1 || die "fuzz: needs a nightly toolchain: rustup toolchain install nightly"
    cargo +nightly fuzz --version >/dev/null 2>&1 || die "fuzz: needs cargo-fuzz: cargo install cargo-fuzz"
    targets=$(cargo +nightly fuzz list)
    [ "$target" != list ] || { printf '%s\n' "$targets" sim && return; }
    if [ "$target" != all ]; then
        grep -qxF -- "$target" <<<"$targets" || die "fuzz: no target '$target'; there are: $(tr '\n' ' ' <<<"$targets")sim"
        targets=$target
    fi
    for target in $targets; do
        say "fuzz: $target for $minutes min"
        # What is found goes to the first folder; seeds are read from the others.
        seeds=("target/fuzz/$target" "fuzz/corpus/$target")
        [ "$target" != config ] || seeds[1]=config
        mkdir -p "${seeds[0]}"
        [ -d "${seeds[1]}" ] || unset 'seeds[1]'
        local options=(-max_total_time=$((minutes * 60)))
        # Some thousand events of some ten bytes each.
        [ "$target" != core ] || options+=(-max_len=32768)
        EVENTS=1 cargo +nightly fuzz run "$target" "${seeds[@]}" -- "${options[@]}"
    done
}

# The simulation from new seeds for so many minutes, or from one.
fuzz_sim() {
    need_build
    local course=(MINUTES="$1")
    [ -z "$2" ] || course=(SEED="$2" SEEDS=1)
    say "fuzz: sim with ${course[*]}"
    # Not --release: it has no assertions.
    env "${course[@]}" cargo test --no-default-features -p proxyengine --test sim -- \
        --ignored --nocapture --exact long
}

cmd_clean() {
    if is_root && have ip; then ./prepNet.sh down --prefix pedemo --quiet; fi
    # A kept machine of the NIC lab, by the folder that it exchanges files with.
    pkill -f 'qemu-system-x86_64 .*proxyengine-lab-' || true
    need_cargo
    cargo clean
}

CALLED_FROM=$OLDPWD
command=${1:---help}
[ $# -eq 0 ] || shift
case $command in
build | package | run | bench)
    # Wherever it stands among the arguments.
    for argument in "$@"; do
        shift
        if [ "$argument" = --no-pgo ]; then NO_PGO=1; else set -- "$@" "$argument"; fi
    done
    ;;
esac
case $command in
demo | test | build | package | image | run | bench | docs | lint | fuzz | clean) "cmd_$command" "$@" ;;
nic-lab) cmd_nic_lab "$@" ;;
-h | --help | help) usage ;;
*)
    usage >&2
    die "unknown command '$command'"
    ;;
esac
