//! The `multinet-dns` binary.
fn main() {}
