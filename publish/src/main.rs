//! The `multinet-publish` binary: parses the command line and calls [`multinet_publish::app`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use multinet_publish::app;
use multinet_runtime::command_line;

fn main() -> ExitCode {
    command_line::main("multinet-publish", app::run)
}
