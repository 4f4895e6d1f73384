//! The `multinet-numaflow` binary: parses the command line and does its job.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use multinet_numaflow::config::Job;
use multinet_numaflow::{app, files};
use multinet_runtime::command_line;

fn main() -> ExitCode {
    command_line::main("multinet-numaflow", |args| match Job::new(args) {
        Job::Serve(config) => app::run(*config),
        Job::Inject { files, settings } => files::print(&files, &settings),
    })
}
