//! The example programs `offer` and `fetch`, with pipes to all their streams.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use multinet_testing::process::workspace_example;

/// Time limit for a program to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Line of a program's output.
#[derive(Debug)]
pub(super) enum Event {
    /// A payload is on offer by this reference.
    Offered(String),
    /// The payload with this id was fetched and acknowledged.
    Taken(String),
    NotTaken(String),
    /// The payload of this reference is right, and about to be acknowledged.
    Fetched(String),
    /// The payload of this reference was acknowledged before.
    Repeated(String),
    /// The payload of this reference could not be fetched, and why.
    NotFetched(String, String),
}

/// Program with its arguments, to start again and again.
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<String>,
    listens: bool,
}

impl Program {
    pub(super) fn new<'a>(example: &str, arguments: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        Ok(Self { path: workspace_example(example)?, arguments, listens: example == "offer" })
    }

    /// Starts the program, which tells its events. Returns when it listens, if it does that.
    pub(super) fn start(&self, events: &Sender<Event>) -> Result<Worker> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut worker = Worker { child };
        let (listens, ready) = channel();
        let output = worker.child.stdout.take().context("a pipe")?;
        let errors = worker.child.stderr.take().context("a pipe")?;
        tell(output, events.clone(), event);
        tell(errors, events.clone(), move |line| {
            if line.starts_with("listening on ") {
                // The test waits for the first one only.
                let _ = listens.send(());
            }
            event(line)
        });
        if self.listens {
            ready.recv_timeout(PATIENCE).with_context(|| format!("{command:?} does not listen"))?;
        }
        Ok(worker)
    }
}

/// Reads lines in a thread, to the end, and tells what they mean. A line that a dying process has
/// begun means nothing.
fn tell(
    from: impl Read + Send + 'static,
    events: Sender<Event>,
    mut event: impl FnMut(&str) -> Option<Event> + Send + 'static,
) {
    std::thread::spawn(move || {
        let (mut from, mut line) = (BufReader::new(from), String::new());
        while from.read_line(&mut line).is_ok_and(|read| read > 0) {
            if let Some(event) = line.strip_suffix('\n').and_then(&mut event)
                && events.send(event).is_err()
            {
                // The test is over.
                return;
            }
            line.clear();
        }
    });
}

fn event(line: &str) -> Option<Event> {
    let (word, rest) = line.split_once(' ').unwrap_or(("", line));
    let (first, reason) = rest.split_once(": ").unwrap_or((rest, ""));
    match word {
        "" => Some(Event::Offered(rest.to_owned())),
        "taken" => Some(Event::Taken(rest.to_owned())),
        "fetched" => Some(Event::Fetched(rest.split(' ').next()?.to_owned())),
        "repeated" => Some(Event::Repeated(rest.to_owned())),
        "not" => match first.split_once(' ')? {
            ("taken", id) => Some(Event::NotTaken(id.to_owned())),
            ("fetched", reference) => Some(Event::NotFetched(reference.to_owned(), reason.to_owned())),
            _ => None,
        },
        _ => None,
    }
}

/// Process that is killed when this value is dropped.
pub(super) struct Worker {
    child: Child,
}

impl Worker {
    /// Writes a message. One to a process that has died is lost, as by any queue.
    pub(super) fn write(&mut self, message: &str) -> Result<()> {
        let pipe = self.child.stdin.as_mut().context("the pipe was closed")?;
        let _ = writeln!(pipe, "{message}");
        Ok(())
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kill();
    }
}
