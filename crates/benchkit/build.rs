//! Tells the benches whether the compiler was given a profile, so that each result says so (`benchkit::PGO`).

fn main() {
    println!("cargo::rustc-check-cfg=cfg(pgo)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    // Set by cargo, with a unit separator between flags.
    let flags = std::env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    if flags.contains("profile-use") {
        println!("cargo::rustc-cfg=pgo");
    }
}
