//! The subcommands, and what all of them have in common: logs, the exit status, errors in one line.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use multinet_client::{ResolveError, TlsError};

use crate::common::LogArgs;
use crate::output::{PipeClosed, Usage, message, note};
use crate::signals::until_signal;
use crate::{bench, completions, doctor, env, exec, hostfile, matrix, resolve, torchrun, transfer};

const PROGRAM: &str = "multinet";

/// Services on the second NICs of pods: find them, see what is wrong, measure, send and receive.
///
/// Names are looked up as by every program in a pod: with the servers and the search path of
/// /etc/resolv.conf.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, max_term_width = 100, after_help = STATUS)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    log: LogArgs,
}

const STATUS: &str = "\
Examples:
  multinet resolve infer.vision.svc.multinet rdma
  multinet doctor infer.vision.svc.multinet rdma

Exit status: 0 if all went well; 1 if not, with one line on standard error that says why (doctor's findings say it \
themselves); 2 if the command line is wrong; 3 if `send` has sent all, but the receiver has not confirmed it, or `get` has written all, but could not say so to `put`; 130 or 143 if SIGINT or SIGTERM \
ended it (not `bench server`, which ends so). Results go to standard output, all else to standard error.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the endpoints of a service: addresses, ports, devices, nodes
    Resolve(resolve::ResolveArgs),
    /// Find out what is wrong with names, networks and the way to a service's pods
    Doctor(doctor::DoctorArgs),
    /// Print the variables by which NCCL, UCX, vLLM and others use this pod's second NICs
    Env(env::EnvArgs),
    /// Start a program with these variables
    Exec(exec::ExecArgs),
    /// Measure the network between two pods: bandwidth or latency
    Bench(bench::BenchArgs),
    /// Send a file or standard input to the pods of a service
    Send(transfer::SendArgs),
    /// Receive from `multinet send`, into a file or standard output
    Recv(transfer::RecvArgs),
    /// Offer a file to `multinet get`, and print the reference by which it is fetched
    Put(transfer::PutArgs),
    /// Fetch a file that `multinet put` offers, into a file or standard output
    Get(transfer::GetArgs),
    /// Print the hosts of a service for a launcher, such as mpirun, once enough of them are there
    Hostfile(hostfile::HostfileArgs),
    /// Start torchrun with this pod's rank among the hosts of a service, on its second NICs
    Torchrun(torchrun::TorchrunArgs),
    /// Measure the bandwidth between all pairs of a service's pods
    Matrix(matrix::MatrixArgs),
    /// Print the script by which a shell completes this program's command lines
    Completions(completions::CompletionsArgs),
    /// Write manual pages into a folder
    Man {
        /// The folder, which has to exist
        dir: PathBuf,
    },
}

/// How long the program waits at its end for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Parses the command line, runs the subcommand, and returns the exit status.
pub(crate) fn main() -> ExitCode {
    let code = parse_and_run();
    multinet_stderr::flush(LAST_LINES);
    code
}

fn parse_and_run() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => exit_code(run(cli)),
        // Help and version are no errors: clap prints them and ends with 0.
        Err(error) if !error.use_stderr() => error.exit(),
        // Without arguments, clap prints help, too, and ends with 2.
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        Err(error) => fail(&one_line(&error), 2),
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let quiet = match cli.command {
        // These themselves report what happens to DNS.
        Command::Resolve(_) | Command::Hostfile(_) => "multinet_client::resolve=off",
        // The error that these end with says why.
        Command::Bench(_) | Command::Matrix(_) => {
            "multinet_client::resolve=off,multinet_client::peers::dial=off,multinet_client::peers::ends=off"
        }
        // These say themselves what is missing.
        Command::Env(_) | Command::Exec(_) | Command::Torchrun(_) => "multinet_client::resolve=off",
        Command::Send(_) | Command::Get(_) => "multinet_client::resolve=off,multinet_client::peers::dial=off",
        _ => "",
    };
    cli.log.init(quiet);
    // Completions and manual pages need no threads.
    match cli.command {
        Command::Completions(args) => completions::run(args, Cli::command()),
        Command::Man { dir } => completions::man(&dir, Cli::command()),
        Command::Resolve(args) => block_on(until_signal(resolve::run(args))),
        Command::Doctor(args) => block_on(until_signal(doctor::run(args))),
        Command::Env(args) => block_on(until_signal(env::run(args))),
        Command::Exec(args) => become_program(exec::prepare(args)),
        Command::Torchrun(args) => become_program(torchrun::prepare(args)),
        Command::Matrix(args) => block_on(until_signal(matrix::run(args))),
        Command::Hostfile(args) => block_on(until_signal(hostfile::run(args))),
        Command::Bench(args) => block_on(bench::run(args)),
        Command::Send(args) => block_on(until_signal(transfer::send(args))),
        Command::Recv(args) => block_on(transfer::recv(args)),
        Command::Put(args) => block_on(transfer::put(args)).map_err(not_all_written),
        Command::Get(args) => block_on(until_signal(transfer::get(args))).map_err(not_all_written),
    }
}

fn become_program(
    preparing: impl Future<Output = anyhow::Result<exec::Prepared>>,
) -> anyhow::Result<ExitCode> {
    match block_on(until_signal(preparing))? {
        exec::Prepared::Start(command) => {
            multinet_stderr::flush(LAST_LINES);
            Ok(exec::start(command))
        }
        exec::Prepared::End(status) => Ok(status),
    }
}

fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(command);
    // A thread that still reads from a terminal must not delay the end.
    runtime.shutdown_background();
    outcome
}

/// Makes it a failure that the reader of standard output has gone, since the reference or the file
/// is lost.
fn not_all_written(error: anyhow::Error) -> anyhow::Error {
    if error.is::<PipeClosed>() {
        return anyhow!("the reader of standard output has gone before all was written");
    }
    error
}

fn exit_code(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        // As with `rg PATTERN | head -1`: the reader has what it wants, which is no failure.
        Err(error) if error.is::<PipeClosed>() => ExitCode::SUCCESS,
        Err(error) => fail(&message(&error), if is_usage(&error) { 2 } else { 1 }),
    }
}

/// Returns whether the command line asks for something impossible, whatever DNS and peers say.
fn is_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Usage>()
            || cause.downcast_ref().is_some_and(ResolveError::is_permanent)
            || matches!(cause.downcast_ref(), Some(TlsError::Name { .. }))
    })
}

/// Prints an error to standard error, and returns `status` as the exit status.
fn fail(message: &str, status: u8) -> ExitCode {
    note(message);
    ExitCode::from(status)
}

/// Returns clap's error about a command line as one line.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let tip = text.lines().filter_map(|line| line.trim().strip_prefix("tip: "));
    let tip: String = tip.flat_map(|tip| ["; ", tip]).collect();
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or(PROGRAM);
    // The program and its subcommands.
    let is_word = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let command: Vec<&str> = usage.split(' ').take_while(is_word).collect();
    format!("{}{tip}; see {} --help", first.join(" ").trim_start_matches("error: "), command.join(" "))
}
