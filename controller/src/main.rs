//! The `multinet-controller` binary: parses the command line and calls
//! [`multinet_controller::app`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use multinet_controller::app;
use multinet_runtime::command_line;

fn main() -> ExitCode {
    command_line::main("multinet-controller", app::run)
}
