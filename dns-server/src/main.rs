//! The `multinet-dns` binary: reads the command line, then [`multinet_dns::app`] takes over.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use multinet_dns::app;
use multinet_dns::config::{Args, Config};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        // Help and version are no errors: clap prints them and ends with 0.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return fail(&app::one_line(&error)),
    };
    match Config::new(args).map_err(anyhow::Error::from).and_then(app::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{error:#}")),
    }
}

/// One line says what, where, and what to do.
fn fail(message: &str) -> ExitCode {
    eprintln!("multinet-dns: {}", message.replace('\n', " "));
    ExitCode::from(2)
}
