//! The commands in `docs/client.md`. Each runs unchanged in a network like the documented one, and
//! prints the shown output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use multinet_testing::markdown::{Example, examples};
use multinet_testing::multus::ip;
use multinet_testing::process::Process;
use multinet_testing::sandboxed;
use multinet_testing::server::{Flags, Server};
use multinet_testing::wait::eventually;
use tempfile::TempDir;

use crate::multinet::{ROOT, multinet, own_sys};

/// `/etc/resolv.conf` of a pod.
const RESOLV_CONF: &str = "\
search vision.svc.cluster.local svc.cluster.local cluster.local
nameserver 127.0.0.1
options ndots:5
";

/// Name of the service's first pod, which is its host name.
const POD: &str = "detect-infer-0-x2v5k";

/// File that is sent and offered.
const FILE: &str = "model.safetensors";

/// Time limit for a program in the other pod to listen or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Creates the network and a server. The commands run in the sandbox as in a pod. The two pods of
/// the service are network namespaces on the same bridge.
fn pods() -> Result<Server> {
    own_sys()?;
    ip(&["link", "add", "net1", "mtu", "9000", "type", "bridge"])?;
    for (name, number) in [("detect-infer-0", 5), ("detect-infer-1", 6)] {
        let end = format!("port{number}");
        ip(&["netns", "add", name])?;
        ip(&["link", "add", &end, "mtu", "9000", "type", "veth", "peer", "name", "net1", "netns", name])?;
        ip(&["link", "set", &end, "master", "net1", "up"])?;
        ip(&["-n", name, "link", "set", "net1", "mtu", "9000", "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        ip(&["-n", name, "address", "add", &format!("192.168.111.{number}/24"), "dev", "net1"])?;
        ip(&["-n", name, "address", "add", &format!("fd00:111::{number}/64"), "dev", "net1", "nodad"])?;
    }
    ip(&["link", "set", "net1", "mtu", "9000", "up"])?;
    ip(&["address", "add", "192.168.111.4/24", "dev", "net1"])?;
    ip(&["address", "add", "fd00:111::4/64", "dev", "net1", "nodad"])?;
    let resolv_conf = Path::new("/etc/resolv.conf");
    // The file may be a link to another file.
    let _ = fs::remove_file(resolv_conf);
    fs::write(resolv_conf, RESOLV_CONF)?;
    Flags::new()
        .listen_instead("dns://127.0.0.1:53")
        .start(&Path::new(ROOT).join("deploy/examples/quickstart"))
}

/// Shell in a folder, with the programs that still run in the service's first pod.
struct Shell {
    folder: PathBuf,
    /// PATH with the folder of `multinet`.
    path: String,
    others: Vec<(Process, Example)>,
}

impl Shell {
    fn new(folder: &Path) -> Result<Self> {
        let binary = PathBuf::from(multinet()?.get_program());
        let programs = binary.parent().context("a folder of programs")?;
        let path = format!("{}:{}", programs.display(), std::env::var("PATH")?);
        Ok(Self { folder: folder.to_owned(), path, others: Vec::new() })
    }

    fn bash(&self, command: &str) -> Command {
        let mut bash = Command::new("bash");
        bash.args(["-c", command]).current_dir(&self.folder).env("PATH", &self.path);
        bash
    }

    /// Starts a program in the service's first pod, in a folder of its own.
    async fn start(&mut self, example: Example) -> Result<()> {
        let folder = TempDir::new_in(&self.folder)?.keep();
        if example.command.starts_with("multinet put") {
            fs::hard_link(self.folder.join(FILE), folder.join(FILE))?;
        }
        let script = format!("hostname {POD} && exec {}", example.command);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", "detect-infer-0", "unshare", "--uts", "bash", "-c", &script]);
        command.current_dir(&folder).env("PATH", &self.path);
        let mut process = Process::spawn(&mut command, &folder.join("log"))?;
        process
            .logged("listening on [fd00:111::5]", PATIENCE)
            .await
            .with_context(|| example.command.clone())?;
        self.others.push((process, example));
        Ok(())
    }

    /// Ends the programs in the other pod once they have printed the shown output.
    async fn end_others(&mut self) -> Result<()> {
        for (mut process, example) in self.others.drain(..) {
            // A program that the page does not show has no expected output.
            if !example.output.is_empty() {
                eventually("the shown output", PATIENCE, async || check(&example, &process.log())).await?;
            }
            process.kill()?;
        }
        Ok(())
    }

    async fn run(&mut self, example: &Example) -> Result<()> {
        let has_listener = ["doctor", "bench client", "send", "multinet get"]
            .iter()
            .any(|verb| example.command.contains(verb));
        if has_listener && self.others.is_empty() {
            let command = "multinet recv --keep".to_owned();
            self.start(Example { command, output: Vec::new() }).await?;
        }
        // A command that runs forever has printed the first results long before the timeout.
        let command = if example.command.contains("--watch") {
            format!("timeout 10 {}", example.command)
        } else {
            example.command.clone()
        };
        let output = self.bash(&format!("{command} 2>&1")).stdin(Stdio::null()).output()?;
        let outcome = check(example, &String::from_utf8(output.stdout)?);
        if has_listener {
            let ended = self.end_others().await;
            return outcome.and(ended);
        }
        outcome
    }
}

/// Returns the lines with single spaces, and with measured values replaced.
fn comparable<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let is_number =
        |word: &str| word.chars().all(|c| c.is_ascii_digit() || c == '.') && word.parse::<f64>().is_ok();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let word = |at: usize| {
            let is_time = words.get(at + 1).is_some_and(|unit| unit.starts_with("ms"));
            let is_measured = is_number(words[at]) && (words[at].contains('.') || is_time);
            if is_measured { "#" } else { words[at] }
        };
        (0..words.len()).map(word).collect::<Vec<_>>().join(" ")
    };
    lines.map(line).collect()
}

fn check(Example { command, output }: &Example, printed: &str) -> Result<()> {
    // Warnings are about the second pod, in which no program listens.
    let printed: String =
        printed.lines().filter(|line| !line.contains(" WARN ")).flat_map(|line| [line, "\n"]).collect();
    ensure!(
        comparable(printed.trim_end().lines()) == comparable(output.iter().map(String::as_str)),
        "$ {command}\n--- docs/client.md shows\n{}\n--- the command prints\n{printed}",
        output.join("\n"),
    );
    Ok(())
}

#[tokio::test]
async fn every_command_of_the_page_prints_the_shown_output() -> Result<()> {
    sandboxed!();
    let page = fs::read_to_string(Path::new(ROOT).join("docs/client.md"))?;
    let _server = pods()?;
    let folder = tempfile::tempdir()?;
    let mut shell = Shell::new(folder.path())?;
    fs::write(folder.path().join(FILE), vec![0; 5_000_000])?;
    let examples = examples(&page);
    ensure!(examples.len() >= 8, "only {} commands", examples.len());
    let mut wrong = Vec::new();
    for example in examples {
        let is_server = ["multinet recv", "multinet put", "multinet bench server"]
            .iter()
            .any(|start| example.command.starts_with(start));
        let outcome = match is_server {
            true => shell.start(example).await,
            false => shell.run(&example).await,
        };
        wrong.extend(outcome.err().map(|error| format!("{error:#}")));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}
