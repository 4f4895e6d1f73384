//! docs/reference.md lists the flags of all programs as their help has them, the other pages name
//! no others, and links between the pages lead somewhere. `UPDATE=1` writes the lists of flags
//! anew.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use multinet_testing::process::{run, workspace_binary};
use multinet_testing::tools::repository;

/// The programs. Each flag of a server has an environment variable.
const SERVERS: [&str; 4] = ["multinet-dns", "multinet-controller", "multinet-publish", "multinet-numaflow"];
const COMMAND_LINE: &str = "multinet";

/// Flags of other programs that the pages name: Helm, Docker, etcd, torchrun, SGLang, Kubernetes.
const FOREIGN: [&str; 10] = [
    "--set",
    "--env-file",
    "--max-txn-ops",
    "--nnodes",
    "--node_rank",
    "--disaggregation-ib-device",
    "--feature-gates",
    "--runtime-config",
    "--kube-api-qps",
    "--kube-api-burst",
];

/// Beginnings of what clap adds to the help of a flag.
const NOTES: [&str; 5] = [" [default: ", " [env: ", " [possible values: ", " [alias: ", " [aliases: "];

/// Flag as the help of a program shows it.
#[derive(PartialEq, Eq)]
struct Flag {
    /// Names, and the name of the value.
    signature: String,
    meaning: String,
    default: String,
    variable: Option<String>,
}

impl Flag {
    /// Parses the two columns of the help. `usage` shows the required flags.
    fn new(signature: &str, about: &str, usage: &str) -> Self {
        let long = signature.rsplit(", ").next().unwrap_or(signature);
        let mut default = if usage.contains(long) { "required" } else { "" }.to_owned();
        let (mut variable, mut notes, mut meaning) = (None, String::new(), about);
        while let Some(rest) = meaning.strip_suffix(']')
            && let Some(start) = NOTES.iter().filter_map(|note| rest.rfind(note)).max()
            && let Some((kind, value)) = rest[start + " [".len()..].split_once(": ")
        {
            match kind {
                "default" => value.clone_into(&mut default),
                "env" => variable = value.split('=').next().map(ToOwned::to_owned),
                "possible values" => notes = format!("; one of {value}{notes}"),
                _ => notes = format!("; also {value}{notes}"),
            }
            meaning = &rest[..start];
        }
        let meaning = format!("{meaning}{notes}");
        Self { signature: signature.replace(['<', '>'], ""), meaning, default, variable }
    }
}

/// Returns the short help of a program or of one of its subcommands.
fn help(name: &str, subcommand: &[String]) -> Result<String> {
    let variable = format!("{}_BIN", name.to_uppercase().replace('-', "_"));
    run(Command::new(workspace_binary(name, &variable)?).args(subcommand).arg("-h").env_clear())
}

/// Returns the flags in a help text, without `--help` and `--version`. clap indents a flag by 2
/// columns, or by 6 if it has no short form, and what it says about it by more.
fn flags(help: &str) -> Vec<Flag> {
    let mut found: Vec<(&str, String)> = Vec::new();
    let mut is_open = false;
    // The examples at the end may begin a line with a flag.
    for line in help.lines().take_while(|line| !line.starts_with("Example")) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if text.starts_with('-') && [2, 6].contains(&indent) {
            let (signature, about) = text.split_once("  ").unwrap_or((text, ""));
            found.push((signature, about.trim().to_owned()));
            is_open = true;
        } else if let Some((_, about)) = found.last_mut().filter(|_| is_open && indent > 6) {
            let gap = if about.is_empty() { "" } else { " " };
            let _ = write!(about, "{gap}{text}");
        } else {
            is_open = false;
        }
    }
    let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
    found.retain(|(signature, _)| !signature.ends_with("--help") && !signature.ends_with("--version"));
    found.iter().map(|(signature, about)| Flag::new(signature, about, usage)).collect()
}

/// Returns the names of subcommands in a help text.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(ToOwned::to_owned).collect()
}

/// Returns the help of a program and of all its subcommands that have none themselves, by name.
fn all_help(name: &str) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    let mut waiting = vec![Vec::new()];
    while let Some(command) = waiting.pop() {
        let text = help(name, &command)?;
        let below = subcommands(&text);
        waiting.extend(below.iter().rev().map(|word| [&command[..], std::slice::from_ref(word)].concat()));
        all.push((command.join(" "), text));
    }
    Ok(all)
}

/// Returns the table of a program's flags. A flag of several subcommands has one row.
fn table(name: &str) -> Result<String> {
    let mut rows: Vec<(Flag, Vec<String>)> = Vec::new();
    for (command, text) in all_help(name)? {
        for flag in flags(&text) {
            match rows.iter_mut().find(|(known, _)| *known == flag) {
                Some((_, commands)) => commands.push(command.clone()),
                None => rows.push((flag, vec![command.clone()])),
            }
        }
    }
    ensure!(rows.len() > 10, "{name} has only {} flags", rows.len());
    let mut table = String::new();
    let cell = |text: &str| text.replace('|', "\\|");
    for (flag, commands) in rows {
        let Flag { signature, mut meaning, default, variable } = flag;
        // Another test shows that servers name theirs alike.
        if let Some(variable) = variable.filter(|_| name == COMMAND_LINE) {
            let _ = write!(meaning, " (variable `{variable}`)");
        }
        let (own, below): (Vec<&String>, Vec<&String>) =
            commands.iter().partition(|command| command.is_empty());
        let below = below.iter().map(|command| format!("`{command}`")).collect::<Vec<_>>().join(", ");
        let of = match (own.is_empty(), commands.len()) {
            (true, _) => format!(" Of {below}."),
            (false, 2) => format!(" Of {below}, too."),
            // A flag of the program itself, or of all of its subcommands.
            (false, _) => String::new(),
        };
        writeln!(table, "| `{}` | {}.{of} | {} |", cell(&signature), cell(&meaning), cell(&default))?;
    }
    Ok(table)
}

#[test]
fn the_reference_lists_every_flag() -> Result<()> {
    let path = repository().join("docs/reference.md");
    let page = fs::read_to_string(&path)?;
    let mut expected = String::new();
    let mut lines = page.lines();
    let mut listed = Vec::new();
    while let Some(line) = lines.next() {
        writeln!(expected, "{line}")?;
        if let Some(name) = line.strip_prefix("<!-- flags of ").and_then(|rest| rest.strip_suffix(" -->")) {
            write!(expected, "| flag | meaning | default |\n|---|---|---|\n{}", table(name)?)?;
            let end = lines.find(|line| *line == "<!-- end of flags -->");
            writeln!(expected, "{}", end.context("no end of flags")?)?;
            listed.push(name);
        }
    }
    listed.sort_unstable();
    let mut programs = [&SERVERS[..], &[COMMAND_LINE]].concat();
    programs.sort_unstable();
    ensure!(listed == programs, "the page lists {listed:?}");
    if std::env::var_os("UPDATE").is_some() {
        return Ok(fs::write(path, expected)?);
    }
    for (shown, wanted) in page.lines().zip(expected.lines()) {
        ensure!(
            shown == wanted,
            "docs/reference.md has\n{shown}\ninstead of\n{wanted}\nRun `cargo build --workspace --bins`, then \
             `UPDATE=1 cargo test --workspace --test conformance documentation::`"
        );
    }
    ensure!(page == expected, "docs/reference.md has more or fewer lines than the programs have flags");
    Ok(())
}

#[test]
fn every_flag_of_a_server_has_its_variable() -> Result<()> {
    for server in SERVERS {
        let flags = flags(&help(server, &[])?);
        ensure!(flags.len() > 10, "{server} has only {} flags", flags.len());
        for Flag { signature, variable, .. } in flags {
            let name = signature.split(' ').next().unwrap_or_default().trim_start_matches('-');
            let wanted = format!("MULTINET_{}", name.to_uppercase().replace('-', "_"));
            ensure!(variable.as_deref() == Some(&*wanted), "{server} --{name}: {variable:?}");
        }
    }
    Ok(())
}

/// Returns a page without its fenced blocks.
fn prose(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut in_block = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !is_fence && !in_block
    });
    Ok(lines.flat_map(|line| [line, "\n"]).collect())
}

/// Returns the anchors of a page's headings, as GitHub makes them.
fn anchors(prose: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        text.chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    headings
        .map(|line| {
            let anchor = anchor(line);
            let count = seen.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        })
        .collect()
}

fn pages() -> Result<Vec<PathBuf>> {
    let root = repository();
    let entries = [root.to_owned(), root.join("docs")].map(fs::read_dir);
    let mut pages = Vec::new();
    for folder in entries {
        for entry in folder? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    ensure!(pages.len() > 12, "only {pages:?}");
    Ok(pages)
}

/// Returns the flags in a text, from the two dashes on.
fn flags_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
    words.filter(|word| word.strip_prefix("--").is_some_and(|name| name.starts_with(char::is_alphabetic)))
}

/// Flags in commands are tested with the commands.
#[test]
fn the_pages_name_only_flags_that_exist() -> Result<()> {
    let reference = fs::read_to_string(repository().join("docs/reference.md"))?;
    let known: HashSet<&str> = flags_in(&reference).chain(FOREIGN).collect();
    let mut count = 0;
    for page in pages()? {
        let text = prose(&page)?;
        for code in text.split('`').skip(1).step_by(2).filter(|code| code.starts_with("--")) {
            for flag in flags_in(code) {
                ensure!(known.contains(flag), "{} names {flag}, which no program has", page.display());
                count += 1;
            }
        }
    }
    ensure!(count > 100, "only {count} flags");
    Ok(())
}

#[test]
fn every_link_of_the_documentation_leads_to_a_file_and_a_heading() -> Result<()> {
    for page in pages()? {
        let text = prose(&page)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { page.clone() } else { page.parent().context("no folder")?.join(file) };
            ensure!(target.exists(), "{} links to {link}, which does not exist", page.display());
            if !anchor.is_empty() && !anchors(&prose(&target)?).iter().any(|known| known == anchor) {
                bail!("{} links to {link}, where no heading has this anchor", page.display());
            }
        }
    }
    Ok(())
}
