//! The `multinet-dns` binary: parses the command line and runs [`multinet_dns::app`].

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use multinet_dns::app;
use multinet_dns::config::{Args, Config};
use multinet_runtime::command_line::{end, one_line};

const PROGRAM: &str = "multinet-dns";

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        // Help and version are not errors: clap prints them and exits with 0.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return end(PROGRAM, Err(one_line(&error, PROGRAM))),
    };
    let outcome = Config::new(args).map_err(anyhow::Error::from).and_then(app::run);
    end(PROGRAM, outcome.map_err(|error| format!("{error:#}")))
}
