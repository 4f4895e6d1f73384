//! Shell completion and manual pages, made from the same definitions as `--help`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;

use crate::output::print;

/// Flags of `multinet completions`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Shell to print the script for
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  source <(multinet completions bash)
  multinet completions fish > ~/.config/fish/completions/multinet.fish";

/// Prints the script by which a shell completes `multinet` command lines.
pub(crate) fn run(args: CompletionsArgs, mut program: Command) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes `multinet.1`, and a page for each subcommand, into a folder.
pub(crate) fn man(folder: &Path, program: Command) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(program, folder)
        .with_context(|| format!("cannot write manual pages into {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
