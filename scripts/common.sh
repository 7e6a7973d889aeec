# shellcheck shell=bash
# What every script of the project shares: how it speaks, how it fails, who it runs as. Sourced, never run.

# One line about what happens next. Stdout is for results, so this goes to stderr.
say() { printf '%s\n' "$*" >&2; }

# A sentence about why it cannot go on, and the end.
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

is_root() { [ "$(id -u)" -eq 0 ]; }

# Prefix that makes a command run as root: empty for root itself, `sudo -n` where that works without a question.
root_prefix() {
    if is_root; then
        return 0
    elif have sudo && sudo -n true 2>/dev/null; then
        printf 'sudo -n'
    else
        return 1
    fi
}
