//! The `multinet-dns` binary: parses the command line and runs [`multinet_dns::app`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use multinet_dns::app;
use multinet_runtime::command_line;

fn main() -> ExitCode {
    command_line::main("multinet-dns", app::run)
}
