//! `multinet send`: reads a file, and sends it to one receiver.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::ready;
use multinet_client::{Change, Choice, Connector, Delivery, Frame, PeerSet, Statistics};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval, timeout};

use super::header::Header;
use super::progress::TransferProgress;
use super::source::{self, Fault, Part, Source};
use super::stall::{StallDetector, Trouble};
use super::{NOT_CONFIRMED, SendArgs, Summary};
use crate::bench::target::Target;
use crate::common::LOST_PACKETS;
use crate::output::{Usage, note, print};

/// Most frames that wait in memory for the receiver's acknowledgement.
const WINDOW: usize = 32;

/// How often the sender checks whether the transfer makes progress.
const CHECK: Duration = Duration::from_millis(50);

/// How long the receiver has to close its connection, or to take an abort.
const GOODBYE: Duration = Duration::from_secs(5);

/// Runs `multinet send`.
pub(crate) async fn run(args: SendArgs) -> anyhow::Result<ExitCode> {
    let (target, path) = args.target_and_source()?;
    let size = args.frame_size as usize;
    // To open a named pipe is to wait for its writer.
    let source = spawn_blocking(move || source::open(&path, size)).await??;
    let wait = Duration::from_secs(args.wait);
    let connector = target.connector(&args.connect)?.delivery(Delivery::AtLeastOnce).choice(Choice::ByKey);
    let connector = connector.replay(WINDOW).wait(wait).build()?;
    let peers = receiver(&connector, &target, wait).await?;
    let transfer = Transfer::new(peers, source.total);
    let start = Instant::now();
    let outcome = tokio::select! {
        summary = transfer.run(source) => summary,
        trouble = transfer.trouble(&args, &target) => Err(trouble),
    };
    let (took, missing) = (start.elapsed(), transfer.missing_answer());
    let peers = transfer.end();
    match (outcome, missing) {
        (Ok(summary), _) => {
            peers.close(GOODBYE).await;
            print(&summary.line("sent", summary.bytes, took))?;
            Ok(ExitCode::SUCCESS)
        }
        (Err(error), Some((answer, advice))) => {
            note(&format!(
                "not confirmed: the receiver has had all of it, but {answer} ({error:#}); look there: {advice}"
            ));
            Ok(ExitCode::from(NOT_CONFIRMED))
        }
        (Err(error), None) => Err(error),
    }
}

impl SendArgs {
    /// Returns the receiver and the file. If the name contains the port, the next argument is the
    /// file.
    fn target_and_source(&self) -> anyhow::Result<(Target, PathBuf)> {
        if self.port.is_none() && Path::new(&self.name).is_file() {
            let name = &self.name;
            return Err(Usage(format!(
                "{name} is a file: write the service first, as in multinet send NAME PORT {name}"
            ))
            .into());
        }
        let source = self.file.as_ref().unwrap_or(&self.source);
        let has_port = Target::split(&self.name, None)?.1.is_some();
        match (&self.port, Target::parse(&self.name, None)?) {
            (Some(path), target) if has_port && self.source.as_os_str() == "-" && self.file.is_none() => {
                Ok((target, path.into()))
            }
            (port, _) => {
                let target = Target::parse(&self.name, port.as_deref())?;
                if self.source.as_os_str() == "-" && self.file.is_none() {
                    target.has_no_file()?;
                }
                Ok((target, source.clone()))
            }
        }
    }
}

/// Connects to the one endpoint that gets everything: the first that is connected, and any pod that
/// takes its place under the same name. Other endpoints, which may come up later, lack the
/// beginning.
async fn receiver(connector: &Connector, target: &Target, wait: Duration) -> anyhow::Result<PeerSet> {
    let all = target.connect(connector, wait).await?;
    let connected = all.status().into_iter().find(|status| status.is_connected);
    let host = connected.context("the receiver has gone")?.endpoint.host.clone();
    let changes = connector.resolver().watch(&target.name, &target.port);
    let endpoints = changes.filter_map(move |change| {
        ready(match change {
            Change::Endpoints(mut resolved) => {
                resolved.endpoints.retain(|endpoint| endpoint.host == host);
                Some(resolved.endpoints)
            }
            Change::Lost { .. } => Some(Vec::new()),
            _ => None,
        })
    });
    Ok(connector.follow(&target.name, endpoints))
}

/// A transfer that is being sent.
struct Transfer {
    peers: PeerSet,
    /// Key of all frames of the transfer: frames of one key reach one peer, in order.
    key: Bytes,
    progress: TransferProgress,
    /// The statistics when all of it had been sent, and the receiver was to say that it has it.
    sealed: OnceLock<Statistics>,
    /// Number of broken connections when the receiver said that it has all of it.
    safe: OnceLock<u64>,
}

const REFUSED: &str = "the receiver refused the transfer; it says why: something is missing, size or checksum differ, it could not \
                       write, another transfer was complete, or it is no multinet recv that waits for one";

impl Transfer {
    fn new(peers: PeerSet, total: Option<u64>) -> Self {
        let key = Bytes::copy_from_slice(&fastrand::u128(..).to_be_bytes());
        let (sealed, safe) = Default::default();
        Self { peers, key, progress: TransferProgress::new(total), sealed, safe }
    }

    fn is_safe(&self) -> bool {
        self.safe.get().is_some()
    }

    /// Returns what a receiver that has had all of it has not said, and what to do; `None` if it
    /// has not had all, or has refused it. A receiver of an earlier version says of any transfer
    /// that it is safe, and compares checksums at the end. A refusal after the connection broke
    /// says nothing: it may come from the next receiver, which knows nothing.
    fn missing_answer(&self) -> Option<(&'static str, &'static str)> {
        let (now, sealed) = (self.peers.statistics(), self.sealed.get()?);
        let asked = self.safe.get().unwrap_or(&sealed.disconnects);
        // An empty transfer has no frame that would tell that a receiver is there.
        if now.acknowledged < sealed.frames.max(1) || (now.rejected > 0 && now.disconnects == *asked) {
            return None;
        }
        Some(if self.is_safe() {
            (
                "has not said that the file is in its place",
                "the next multinet recv to the same name finishes it",
            )
        } else {
            ("has not said that it is on the disk", "send it again if the file is not there")
        })
    }

    /// Ends the progress bar, whose line is then free for what is printed next.
    fn end(self) -> PeerSet {
        self.peers
    }

    /// Sends the transfer. Completes when the receiver has confirmed that the file has its name.
    async fn run(&self, mut source: Source) -> anyhow::Result<Summary> {
        let mut offset = 0;
        let summary = loop {
            match source.parts.recv().await.context("the reading thread has ended")? {
                Part::Bytes(buffer) => {
                    let length = buffer.len() as u64;
                    self.send(Frame::new(buffer), &Header::part(offset, source.total)).await?;
                    offset += length;
                    self.progress.at(offset);
                }
                Part::End(summary) => break summary,
                Part::Failed(Fault { reason, error }) => {
                    // The receiver need not wait for the rest.
                    let abort = Header::abort(offset, reason);
                    let _ = timeout(GOODBYE, self.ask(&abort)).await;
                    return Err(error);
                }
            }
        };
        let _ = self.sealed.set(self.peers.statistics());
        self.ask(&Header::seal(&summary)).await?;
        let _ = self.safe.set(self.peers.statistics().disconnects);
        self.ask(&Header::end(&summary)).await?;
        Ok(summary)
    }

    async fn send(&self, frame: Frame, header: &Header) -> anyhow::Result<()> {
        self.peers.send(frame.key(self.key.clone()).metadata(header.encode())).await?;
        Ok(())
    }

    /// Sends a header. Completes when the receiver has acknowledged it, and everything before.
    async fn ask(&self, header: &Header) -> anyhow::Result<()> {
        self.send(Frame::new(Bytes::new()), header).await?;
        self.peers.flush().await?;
        // A frame that was refused may have been taken by the next receiver since.
        if self.peers.statistics().rejected > 0 {
            bail!(REFUSED);
        }
        Ok(())
    }

    /// Completes when the transfer cannot succeed any more, with the reason.
    async fn trouble(&self, args: &SendArgs, target: &Target) -> anyhow::Error {
        let mut ticks = interval(CHECK);
        let wait = Duration::from_secs(args.wait);
        let mut progress = StallDetector::new(Instant::now().into_std(), wait, args.frame_size);
        let mut safe = None;
        loop {
            let now = ticks.tick().await;
            let statistics = self.peers.statistics();
            let trouble = progress.check(now.into_std(), &statistics);
            // Renaming a file takes hardly any time.
            if self.is_safe() && now - *safe.get_or_insert(now) > progress.patience() {
                return anyhow!("the receiver has not answered within {} s", progress.patience().as_secs());
            }
            let Some(trouble) = trouble else { continue };
            let (acknowledged, frames) = (statistics.acknowledged, statistics.frames);
            let so_far = format!("{acknowledged} of {frames} frames so far were acknowledged");
            let status = self.peers.status().into_iter().next();
            let broken = status.as_ref().and_then(|status| status.last_disconnect.clone());
            match trouble {
                Trouble::Refused => return anyhow!(REFUSED),
                Trouble::Gone => {
                    let failed = status.as_ref().and_then(|status| status.last_error.as_deref());
                    let last = match (failed, broken, &status) {
                        (Some(error), _, _) => error.to_string(),
                        (None, Some(broken), _) => format!("the connection broke: {broken}"),
                        (None, None, Some(_)) => "a connection to the next one is being made".to_owned(),
                        (None, None, None) => "DNS names no endpoint".to_owned(),
                    };
                    let wait = wait.as_secs();
                    return anyhow!("the receiver has gone, and none came within {wait} s: {so_far}; {last}");
                }
                Trouble::Stuck => {
                    let connections = statistics.disconnects + statistics.connected as u64;
                    let cause = match broken {
                        // The peer has said why.
                        Some(broken) if broken.starts_with("the peer") => {
                            format!("the last one broke: {broken}")
                        }
                        _ => format!(
                            "{LOST_PACKETS}; multinet doctor {} {} says so. Or the receiver hangs",
                            target.name, target.port
                        ),
                    };
                    return anyhow!(
                        "nothing has got through to the receiver for {} s (connections made: {connections}); {so_far}. {cause}",
                        progress.patience().as_secs()
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        send: SendArgs,
    }

    #[test]
    fn the_second_argument_is_the_file_if_the_name_contains_the_port() {
        let cases: [(&[&str], &str, &str, &str); 8] = [
            (&["infer"], "infer", "18515", "-"),
            (&["infer", "rdma"], "infer", "rdma", "-"),
            (&["infer", "rdma", "a.bin"], "infer", "rdma", "a.bin"),
            (&["10.0.0.1:9", "a.bin"], "10.0.0.1", "9", "a.bin"),
            (&["[fd00::1]", "9"], "fd00::1", "9", "-"),
            (&["[fd00::1]:9", "a.bin"], "fd00::1", "9", "a.bin"),
            (&["10.0.0.1", "--file", "a.bin"], "10.0.0.1", "18515", "a.bin"),
            (&["infer", "rdma", "--file", "a.bin"], "infer", "rdma", "a.bin"),
        ];
        for (line, name, port, path) in cases {
            let line =
                Line::try_parse_from([&["send"], line].concat()).unwrap_or_else(|error| panic!("{error}"));
            let (target, source) = line.send.target_and_source().unwrap();
            assert_eq!((target.name.as_str(), target.port.as_str()), (name, port));
            assert_eq!(source, PathBuf::from(path));
        }
        let line = Line::try_parse_from(["send", "10.0.0.1:9", "8", "a.bin"])
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(line.send.target_and_source().is_err());
    }
}
