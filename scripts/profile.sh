# shellcheck shell=bash
# Builds with what a run of the engine has taught the compiler (profile-guided optimisation). Sourced by build.sh after
# common.sh and packages.sh.
#
#   sources ─► target/training: counters at every branch ─► run `bench training` ─► target/profile/KEY.profdata
#   sources + profile ─► target/profiled: what `build.sh run` and the benches of the engine use
#
# KEY stands for the compiler and the sources, so a profile is taken once for each state of them.

# Every processor that DPDK runs on, with the features of x86-64-v2: the same for what is measured and what is installed. Not
# as a target CPU: LLVM takes that name for a Sandy Bridge, and rotates by SHLD, which is slow on processors of AMD.
CPU_FLAG=
[ "$(uname -m)" != x86_64 ] || CPU_FLAG=-Ctarget-feature=+cmpxchg16b,+popcnt,+ssse3,+sse4.1,+sse4.2

# Where cargo builds: a folder of its own for what has a profile.
PROFILED_TARGET=

# The user's own flags, for what is built without a profile all the same.
# shellcheck disable=SC2034  # build.sh uses it
PLAIN_RUSTFLAGS=${RUSTFLAGS:-}

# Not empty for a build without a profile: `--no-pgo` of build, run and bench.
NO_PGO=

# Has cargo build with a profile from now on. Without one the programs are right, and a sixth slower: what is missing is
# said, and they are built.
use_profile() {
    local file
    [ -z "$PROFILED_TARGET" ] || return 0
    PROFILED_TARGET=$(target_dir)
    [ -z "$NO_PGO" ] || return 0
    file=$(target_dir)/profile/$(profile_key).profdata
    # Cargo takes flags apart at blanks.
    if [[ $file =~ [[:space:]] ]]; then
        say "profile: going on without, as the folder's name has blanks"
        return 0
    fi
    have_profile "$file" || {
        say "profile: going on without: the programs will be slower than they could be"
        return 0
    }
    PROFILED_TARGET=$(target_dir)/profiled
    # shellcheck disable=SC2034  # read by build.sh
    PLAIN_RUSTFLAGS=${RUSTFLAGS:-}
    export RUSTFLAGS="$CPU_FLAG ${RUSTFLAGS:-} -Cprofile-use=$file"
}

# have_profile FILE  takes a profile unless there is one of these sources.
have_profile() { [ -s "$1" ] || take_profile "$1"; }

# What a profile depends on: the compiler, the sources of what is measured, and the load.
profile_key() {
    {
        rustc -vV
        find Cargo.toml Cargo.lock src crates/*/src benches/{training,{device,siege}/shared} \
            benches/{core/guard/prefixes,device/capture/reader}.rs -type f -print0 |
            sort -z | xargs -0 sha256sum
    } | sha256sum | cut -c 1-16
}

# take_profile FILE
take_profile() {
    local file=$1 tool folder program
    tool=$(profile_tool) || return 1
    folder=$(target_dir)/profile
    rm -rf "$folder"
    mkdir -p "$folder/raw"
    say "profile: building with counters, once for this state of the sources; --no-pgo does without"
    # What the build itself runs counts, too, and is not wanted.
    program=$(LLVM_PROFILE_FILE=/dev/null RUSTFLAGS="$CPU_FLAG ${RUSTFLAGS:-} -Cprofile-generate" \
        bench_program proxyengine training --target-dir "$(target_dir)/training") || return 1
    say "profile: running the load to learn from"
    LLVM_PROFILE_FILE="$folder/raw/%p.profraw" "$program" --bench >"$folder/training.log" 2>&1 || {
        tail -n 5 "$folder/training.log" >&2
        say "profile: the load has failed; $folder/training.log has all of it"
        return 1
    }
    # Under its name only when it is whole.
    "$tool" merge --sparse -o "$file.part" "$folder"/raw/*.profraw && mv "$file.part" "$file" && rm -rf "$folder/raw"
}

# Prints the program that makes a profile of counts, installing one if there is none: it must know the compiler's format.
profile_tool() {
    local own
    own=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/llvm-profdata
    if [ -x "$own" ]; then
        printf '%s' "$own"
        return
    fi
    newest_profile_tool || { install "to build with a profile" "${PROFILE_PACKAGES[@]}" && newest_profile_tool; } || {
        say "profile: llvm-profdata 19 or later is missing: apt-get install ${PROFILE_PACKAGES[*]}, or rustup component add llvm-tools"
        return 1
    }
}

# Prints the newest that is installed, if it is new enough.
newest_profile_tool() {
    local version
    for version in $(compgen -c llvm-profdata- | sed -n 's/^llvm-profdata-\([0-9]*\)$/\1/p' | sort -rnu); do
        [ "$version" -lt 19 ] && break
        command -v "llvm-profdata-$version"
        return
    done
    return 1
}
