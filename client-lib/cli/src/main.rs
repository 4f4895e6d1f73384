//! The `multinet` command line: reads the flags, then [`app`] takes over.

#![forbid(unsafe_code)]

mod app;
mod bench;
mod common;
mod completions;
mod doctor;
mod env;
mod exec;
mod hostfile;
mod hosts;
mod matrix;
mod output;
mod own_view;
mod rendezvous;
mod resolve;
mod signals;
mod torchrun;
mod transfer;

use std::process::ExitCode;

fn main() -> ExitCode {
    app::main()
}
