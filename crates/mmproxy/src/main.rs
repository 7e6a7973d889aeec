//! mmproxy
fn main() {}
