//! `multinet get`: fetches a file that `multinet put` has on offer.
//!
//! ```text
//!   manifest ──> chunks, a few at a time ──> a thread: writes in order, hashes ──> file is placed
//!                                                                                       │
//!   put ends <── the manifest is acknowledged <── it is fetched again <─────────────────┘
//! ```
//!
//! No chunk is acknowledged, so that all of the file stays on offer until one `multinet get` has
//! it. The manifest is fetched once more for its acknowledgement: the connection by which it came
//! first may have broken since. The answer to a third fetch says that it was taken.

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, ensure};
use clap::Args;
use futures::StreamExt as _;
use futures::stream;
use multinet_client::{Connector, FetchError, Received, Reference};
use multinet_stderr::write_line;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::assembly::{Assembly, is_taken};
use super::destination::Destination;
use super::ending::Stage;
use super::manifest::{MARK, Manifest};
use super::progress::TransferProgress;
use super::{MAX_WAIT, NOT_CONFIRMED, put};
use crate::bench::target::{Target, is_wrong_role};
use crate::common::{ConnectArgs, wait_with_note};
use crate::output::{Usage, note, print};

/// Most chunks that are asked for at a time, or have come and wait for one before them.
const WINDOW: usize = 8;

/// Most bytes of those chunks, unless `--memory` says otherwise. One chunk may have more.
const WAITING: usize = 64 << 20;

/// Pause after another pod has answered, which has a file with the same id on offer.
const ELSEWHERE: Duration = Duration::from_secs(1);

/// How long the acknowledgement of the whole file may take.
const GOODBYE: Duration = Duration::from_secs(5);

/// Flags of `multinet get`.
#[derive(Args, Debug)]
#[command(override_usage = "multinet get [OPTIONS] <SERVICE> [PORT] <REFERENCE>", after_help = EXAMPLES)]
pub(crate) struct GetArgs {
    /// Service with the pod that offers the file, or the address of that pod, with or without a
    /// port
    #[arg(value_name = "SERVICE")]
    name: String,

    /// Port: the name of a service port, or a number [default: 18516]
    #[arg(value_name = "PORT")]
    port: Option<String>,

    /// Reference that `multinet put` has printed: HOST/ID
    #[arg(value_name = "REFERENCE")]
    reference: Option<String>,

    /// File to write; it appears when it is complete. A device, a named pipe or a socket is written
    /// as it comes, and so is -, standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,

    /// Largest frame that is accepted, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    frame_size: u32,

    /// Most memory for frames [default: a quarter of what the container may have, 4 GiB at most]
    #[arg(long, value_name = "BYTES", env = "MULTINET_MEMORY")]
    memory: Option<usize>,

    /// How long to look for the file, or to wait for more of it, before it counts as gone
    #[arg(long, value_name = "SECONDS", default_value_t = 150,
          value_parser = clap::value_parser!(u64).range(1..=MAX_WAIT))]
    wait: u64,

    #[command(flatten)]
    connect: ConnectArgs,
}

const EXAMPLES: &str = "\
Examples:
  multinet get infer.vision.svc.multinet infer-0/4f1c… -o model.safetensors
  multinet get 192.168.100.7 infer-0/data | tar -x

Both sides print the size and the SHA-256 of the file. The exit status is 0 only if all of it has been written, the \
checksum is right, and multinet put is told so; 3 if multinet put could not be told; 1 if it failed. The file stays on \
offer until then: a multinet get that is killed is followed by the same command, which goes on where it was.";

/// Runs `multinet get`.
pub(crate) async fn run(args: GetArgs) -> anyhow::Result<ExitCode> {
    let (target, reference) = args.target_and_reference()?;
    let destination = Destination::new(&args.output, args.force, false)?;
    let is_stdout = destination.is_stdout();
    let remote = Remote::new(&args, target, reference)?;
    let wait = Duration::from_secs(args.wait);
    let manifest = wait_with_note("nothing fetched yet", wait, remote.manifest()).await?;
    let id = manifest.transfer_id(&remote.reference);
    let output = spawn_blocking({
        let manifest = manifest.clone();
        move || Assembly::open(destination, id, manifest)
    });
    let output = output.await??;
    let (begin, moved) = (Instant::now(), output.missing());
    let output = remote.fetch_missing(&manifest, output).await?;
    let took = begin.elapsed();

    let is_told = remote.acknowledge(&manifest).await;
    let line = manifest.summary().line("received", moved, took);
    // If that fails, the file is there all the same.
    output.finish();
    if is_stdout {
        write_line(line.trim_end());
    } else if let Err(error) = print(&line) {
        note(&format!("{}, but: {error:#}", line.trim_end()));
    }
    Ok(match is_told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!(
                "not confirmed: all of {} has been written, but multinet put has not been told ({error:#}): it has ended, or goes on \
                 offering the file",
                remote.reference
            ));
            ExitCode::from(NOT_CONFIRMED)
        }
    })
}

impl GetArgs {
    /// Returns the pods to ask, and the reference, which is the last argument.
    fn target_and_reference(&self) -> anyhow::Result<(Target, Reference)> {
        let name = &self.name;
        let is_reference = |text: &str| text.parse::<Reference>().is_ok();
        let (port, reference) = match (&self.port, &self.reference) {
            (Some(port), Some(reference)) if is_reference(port) && !is_reference(reference) => {
                return Err(Usage(format!(
                    "the reference is the last argument: multinet get {name} {reference} {port}"
                ))
                .into());
            }
            (port, Some(reference)) => (port.as_deref(), reference),
            (Some(reference), None) => (None, reference),
            (None, None) if is_reference(name) => {
                return Err(Usage(format!(
                    "which service {name} is in is not known: multinet get SERVICE {name}"
                ))
                .into());
            }
            (None, None) => {
                return Err(Usage(format!(
                    "the reference is missing, which multinet put prints: multinet get {name} HOST/ID"
                ))
                .into());
            }
        };
        if is_reference(name) && !is_reference(reference) {
            return Err(Usage(format!("the service comes first: multinet get {reference} {name}")).into());
        }
        let (host, port) = Target::split(name, port)?;
        let port = port.unwrap_or_else(|| put::DEFAULT_PORT.to_string());
        let reference = reference
            .parse()
            .map_err(|error| Usage(format!("{error}; multinet put prints the reference")))?;
        Ok((Target { name: host, port }, reference))
    }
}

/// The file on offer.
struct Remote {
    connector: Connector,
    target: Target,
    reference: Reference,
    wait: Duration,
    /// Most bytes of chunks that wait for one before them.
    waiting: usize,
}

impl Remote {
    fn new(args: &GetArgs, target: Target, reference: Reference) -> anyhow::Result<Self> {
        let mut connector = target
            .connector(&args.connect)?
            .fetch_frame_size(args.frame_size)
            .fetch_slots(WINDOW as u32)
            .fetch_wait(Duration::from_secs(args.wait));
        if let Some(bytes) = args.memory {
            connector = connector.fetch_memory(bytes);
        }
        let (connector, wait) = (connector.build()?, Duration::from_secs(args.wait));
        Ok(Self { connector, target, reference, wait, waiting: args.memory.unwrap_or(WAITING) })
    }

    async fn fetch(&self, reference: &Reference) -> anyhow::Result<Received> {
        let Target { name, port } = &self.target;
        self.connector.fetch(name, port, reference).await.map_err(|error| match &error {
            FetchError::Lasting { last, .. } if is_wrong_role(last) => {
                anyhow!("{error}: give the port of multinet put, which is {} by default", put::DEFAULT_PORT)
            }
            _ => error.into(),
        })
    }

    /// Fetches the manifest, which stays on offer.
    async fn manifest(&self) -> anyhow::Result<Manifest> {
        let until = Instant::now() + self.wait;
        loop {
            let manifest = self.decode(&self.fetch(&self.reference).await?)?;
            if manifest.host == self.reference.host() {
                return Ok(manifest);
            }
            ensure!(
                Instant::now() < until,
                "{} is gone: only {} has a file with this id on offer, which may be another file",
                self.reference,
                manifest.host
            );
            sleep(ELSEWHERE).await;
        }
    }

    fn decode(&self, frame: &Received) -> anyhow::Result<Manifest> {
        let reference = &self.reference;
        ensure!(
            frame.metadata() == MARK,
            "{reference} is not from multinet put, but from a program with a format of its own: it stays on offer"
        );
        Manifest::decode(frame.bytes())
            .with_context(|| format!("{reference} is not from a multinet put of this version"))
    }

    /// Acknowledges the file, which the caller has written.
    async fn acknowledge(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let told = timeout(GOODBYE, self.tell(manifest)).await;
        let told = told.unwrap_or_else(|_| Err(anyhow!("no answer within {} s", GOODBYE.as_secs())));
        if told.is_ok() {
            let end = manifest.end_id(&self.reference).parse()?;
            if let Ok(Ok(end)) = timeout(GOODBYE, self.fetch(&end)).await {
                end.acknowledge();
            }
        }
        let _ = timeout(GOODBYE, self.connector.close()).await;
        told
    }

    /// Acknowledges the manifest until the pod answers that it was taken. The second question
    /// comes after the first acknowledgement, unless the connection has broken in between, or RDMA
    /// is slower than the connection beside it.
    async fn tell(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let mut is_acknowledged = false;
        loop {
            match self.fetch(&self.reference).await {
                Ok(frame) => {
                    ensure!(self.decode(&frame)? == *manifest, "another file is on offer by now");
                    frame.acknowledge();
                    is_acknowledged = true;
                }
                Err(error) if is_acknowledged && is_taken(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Fetches the chunks that the output lacks, and places the file.
    async fn fetch_missing(&self, manifest: &Manifest, output: Assembly) -> anyhow::Result<Assembly> {
        if output.stage() == Stage::Placed {
            return Ok(output);
        }
        let progress = TransferProgress::new(Some(manifest.bytes));
        let first = if output.missing() == 0 { manifest.chunks } else { manifest.chunk_at(output.written()) };
        let window = (self.waiting / manifest.chunk_size as usize).clamp(1, WINDOW);
        let (chunks, inbox) = mpsc::channel(1);
        let writing = spawn_blocking(move || output.write_all(first, inbox));
        let fetching = async move {
            let numbers = first..manifest.chunks;
            let mut coming = pin!(
                stream::iter(numbers.clone()).map(|number| self.chunk(manifest, number)).buffered(window)
            );
            for number in numbers {
                let (offset, length) = manifest.extent(number);
                let Manifest { bytes, .. } = manifest;
                let chunk = coming.next().await.context("the chunks have an end").flatten();
                let chunk =
                    chunk.with_context(|| format!("{} after {offset} of {bytes} bytes", self.reference));
                let is_last = chunk.is_err();
                // The writing thread says why it has ended.
                if chunks.send(chunk).await.is_err() || is_last {
                    break;
                }
                progress.at(offset + length);
            }
        };
        let ((), written) = tokio::join!(fetching, writing);
        written?
    }

    /// Fetches a chunk. It is copied, so that chunks which wait for one before them leave it a
    /// slot.
    async fn chunk(&self, manifest: &Manifest, number: u64) -> anyhow::Result<Vec<u8>> {
        let reference = manifest.chunk_id(&self.reference, number).parse()?;
        Ok(self.fetch(&reference).await?.bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        get: GetArgs,
    }

    fn parse(line: &[&str]) -> Result<(String, String), String> {
        let Line { get } =
            Line::try_parse_from([&["get"], line].concat()).unwrap_or_else(|error| panic!("{error}"));
        let parsed = get.target_and_reference().map_err(|error| error.to_string());
        parsed.map(|(target, reference)| (target.display(), reference.to_string()))
    }

    #[test]
    fn the_last_argument_is_the_reference() {
        let cases: [(&[&str], &str, &str); 5] = [
            (&["infer.vision", "infer-0/a"], "infer.vision:18516", "infer-0/a"),
            (&["infer.vision", "fetch", "infer-0/a"], "infer.vision:fetch", "infer-0/a"),
            (&["infer.vision:9", "infer-0/a/b"], "infer.vision:9", "infer-0/a/b"),
            (&["10.0.0.1", "9", "infer-0/a"], "10.0.0.1:9", "infer-0/a"),
            (&["fd00::1", "infer-0/a"], "[fd00::1]:18516", "infer-0/a"),
        ];
        for (line, target, reference) in cases {
            assert_eq!(parse(line), Ok((target.to_owned(), reference.to_owned())));
        }
    }

    #[test]
    fn a_mistake_is_refused_with_the_correct_command_line() {
        let cases: [(&[&str], &str); 7] = [
            (&["infer-0/a", "infer.vision"], "the service comes first: multinet get infer.vision infer-0/a"),
            (
                &["infer.vision", "infer-0/a", "9"],
                "the reference is the last argument: multinet get infer.vision 9 infer-0/a",
            ),
            (&["infer-0/a"], "is in is not known: multinet get SERVICE infer-0/a"),
            (&["infer.vision"], "which multinet put prints: multinet get infer.vision HOST/ID"),
            (
                &["infer.vision", "a"],
                "\"a\" is no reference: it has to be HOST/ID; multinet put prints the reference",
            ),
            (&["infer:9", "8", "infer-0/a"], "two ports for infer: 9 and 8"),
            (&["http://infer.vision", "infer-0/a"], "is a URL: give the name alone"),
        ];
        for (line, expected) in cases {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line:?}: {error}");
        }
    }
}
