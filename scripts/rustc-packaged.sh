#!/bin/sh
# The compiler as packages are built with it: cargo calls this with the compiler's name and arguments (RUSTC_WRAPPER).
# shellcheck disable=SC2086  # a word for each flag
exec "$@" $PACKAGE_RUSTC_FLAGS
