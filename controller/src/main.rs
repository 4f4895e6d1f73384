//! The `multinet-controller` binary: parses the command line and calls
//! [`multinet_controller::app`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use multinet_controller::app;
use multinet_controller::config::Args;
use multinet_runtime::command_line::{end, one_line};

const PROGRAM: &str = "multinet-controller";

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        // Help and version are no errors. clap prints them and exits with status 0.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return end(PROGRAM, Err(one_line(&error, PROGRAM))),
    };
    end(PROGRAM, app::run(args).map_err(|error| format!("{error:#}")))
}
