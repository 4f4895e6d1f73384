//! `multinet bench`, `send` and `recv`: the real binary, over loopback.

mod bench;
mod support;
mod transfer;
