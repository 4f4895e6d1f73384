//! `multinet send`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::ready;
use multinet_client::{Change, Choice, Connector, Delivery, Frame, PeerSet};
use tokio::time::{Instant, interval};

use super::header::Header;
use super::progress::Progress;
use super::source::{self, Part, Source};
use super::{SendArgs, Summary};
use crate::bench::target::Target;
use crate::common::patiently;
use crate::output::print;

/// Frames that may wait for their acknowledgement, in memory.
const WINDOW: usize = 32;

/// How often it is looked whether all is well.
const LOOK: Duration = Duration::from_millis(50);

/// How long the receiver has to say goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

pub(super) async fn run(args: SendArgs) -> anyhow::Result<ExitCode> {
    let (target, path) = args.what()?;
    let source = source::open(&path, args.frame_size as usize)?;
    let wait = Duration::from_secs(args.wait);
    let connector = target.connector(&args.connect)?.delivery(Delivery::AtLeastOnce).choice(Choice::ByKey);
    let connector = connector.replay(WINDOW).wait(wait).build()?;
    let peers = patiently(wait, receiver(&connector, &target)).await?;
    let start = Instant::now();
    let summary = tokio::select! {
        summary = transfer(&peers, source) => summary?,
        trouble = trouble(&peers, wait) => return Err(trouble),
    };
    let took = start.elapsed();
    peers.close(GOODBYE).await;
    print(&summary.line("sent", summary.bytes, took))?;
    Ok(ExitCode::SUCCESS)
}

impl SendArgs {
    /// Whom to send to, and what. Where the port is part of the name, what follows is the file.
    fn what(&self) -> anyhow::Result<(Target, PathBuf)> {
        let source = self.file.as_ref().unwrap_or(&self.source);
        match (&self.port, Target::parse(&self.name, None)?) {
            (Some(path), target)
                if target.name != self.name && self.source.as_os_str() == "-" && self.file.is_none() =>
            {
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

/// The one endpoint that gets everything: the first that is connected, and whatever pod takes its place under the same name. Others,
/// which may come up later, have not seen the beginning.
async fn receiver(connector: &Connector, target: &Target) -> anyhow::Result<PeerSet> {
    let all = connector.connect(&target.name, &target.port).await?;
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

/// Completes when the receiver has acknowledged everything.
async fn transfer(peers: &PeerSet, mut source: Source) -> anyhow::Result<Summary> {
    let progress = Progress::new(source.total);
    // One key reaches one peer, in order; another transfer's may reach another.
    let key = Bytes::copy_from_slice(&fastrand::u128(..).to_be_bytes());
    let frame = |part: Frame, header: Header| part.key(key.clone()).metadata(header.encode());
    let mut offset = 0;
    let summary = loop {
        match source.parts.recv().await.context("the reading thread has ended")? {
            Part::Bytes(buffer) => {
                let length = buffer.len() as u64;
                let header = Header { offset, total: source.total, sha256: None };
                peers.send(frame(Frame::new(buffer), header)).await?;
                offset += length;
                progress.at(offset);
            }
            Part::End(summary) => break summary,
            Part::Failed(error) => return Err(error).context("cannot read what is to be sent"),
        }
    };
    peers.send(frame(Frame::new(Bytes::new()), Header::end(&summary))).await?;
    peers.flush().await?;
    // What has been refused last may have been taken by another that has come since.
    if peers.statistics().rejected > 0 {
        bail!(REFUSED);
    }
    Ok(summary)
}

const REFUSED: &str = "the receiver refused the transfer; it says why: something is missing, size or checksum differ, it could not \
                       write, or it is no multinet recv that waits for one";

/// Completes when it cannot come to a good end any more.
async fn trouble(peers: &PeerSet, wait: Duration) -> anyhow::Error {
    let mut look = interval(LOOK);
    let mut connected = Instant::now();
    loop {
        look.tick().await;
        let statistics = peers.statistics();
        if statistics.rejected > 0 {
            return anyhow::Error::msg(REFUSED);
        }
        if statistics.connected > 0 {
            connected = Instant::now();
        } else if connected.elapsed() > wait {
            let last = peers.status().into_iter().find_map(|status| status.last_error);
            return anyhow::anyhow!(
                "the receiver has gone, and none came within {} s: {} of {} frames so far were acknowledged; {}",
                wait.as_secs(),
                statistics.acknowledged,
                statistics.frames,
                last.map_or_else(|| "DNS names nobody".to_owned(), |error| error.to_string())
            );
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
    fn a_port_in_the_name_leaves_the_second_place_to_the_file() {
        let cases: [(&[&str], &str, &str, &str); 6] = [
            (&["infer"], "infer", "18515", "-"),
            (&["infer", "rdma"], "infer", "rdma", "-"),
            (&["infer", "rdma", "a.bin"], "infer", "rdma", "a.bin"),
            (&["10.0.0.1:9", "a.bin"], "10.0.0.1", "9", "a.bin"),
            (&["10.0.0.1", "--file", "a.bin"], "10.0.0.1", "18515", "a.bin"),
            (&["infer", "rdma", "--file", "a.bin"], "infer", "rdma", "a.bin"),
        ];
        for (line, name, port, path) in cases {
            let line =
                Line::try_parse_from([&["send"], line].concat()).unwrap_or_else(|error| panic!("{error}"));
            let (target, source) = line.send.what().unwrap();
            assert_eq!((target.name.as_str(), target.port.as_str()), (name, port));
            assert_eq!(source, PathBuf::from(path));
        }
        let line = Line::try_parse_from(["send", "10.0.0.1:9", "8", "a.bin"])
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(line.send.what().is_err());
    }
}
