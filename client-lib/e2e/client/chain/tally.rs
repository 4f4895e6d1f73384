//! Output of sources and sinks, and the check that it is consistent.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context as _, Result, ensure};

use super::vertex::Record;

/// Counts in a status line of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) sent: u64,
    pub(super) acknowledged: u64,
    pub(super) repeats: u64,
    pub(super) lost: u64,
    pub(super) disconnects: u64,
    pub(super) connected: u64,
}

/// Frame in a line of a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) number: u64,
    pub(super) is_repeat: bool,
    pub(super) key: String,
    pub(super) sender: String,
}

impl Status {
    /// Returns the last status in a log.
    pub(super) fn last(log: &str) -> Result<Self> {
        Self::all(log)?.pop().context("no status is printed yet")
    }

    /// Returns all statuses in a log, in their order.
    pub(super) fn all(log: &str) -> Result<Vec<Self>> {
        let complete = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let is_status = |line: &&str| line.starts_with("status ") || line.starts_with("done ");
        complete.lines().filter(is_status).map(Self::parse).collect()
    }

    fn parse(line: &str) -> Result<Self> {
        let fields: HashMap<&str, &str> = line.split(' ').filter_map(|field| field.split_once('=')).collect();
        let field = |name: &str| -> Result<u64> {
            Ok(fields.get(name).with_context(|| format!("no {name} in {line:?}"))?.parse()?)
        };
        Ok(Self {
            sent: field("sent")?,
            acknowledged: field("acknowledged")?,
            repeats: field("repeats")?,
            lost: field("lost")?,
            disconnects: field("disconnects")?,
            connected: field("connected")?,
        })
    }
}

impl Frame {
    /// Returns all frames in a log, in their order. A frame whose line a SIGKILL has cut off does
    /// not count as received.
    pub(super) fn all(log: &str) -> Result<Vec<Self>> {
        let complete = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let lines = complete.lines().filter_map(|line| line.strip_prefix("frame "));
        lines.map(|line| Self::parse(line).with_context(|| format!("frame {line}"))).collect()
    }

    fn parse(line: &str) -> Result<Self> {
        let fields: Vec<_> = line.split(' ').collect();
        let [number, which @ ("first" | "repeat"), key, sender] = fields[..] else {
            anyhow::bail!("not a line of a sink");
        };
        // The number is `corrupt` if the checksum is wrong.
        let number = number.parse().with_context(|| format!("the number is {number}"))?;
        Ok(Self { number, is_repeat: which == "repeat", key: key.to_owned(), sender: sender.to_owned() })
    }
}

/// Returns the sinks that received each frame of a sender, by number, with whether it was marked as
/// a repeat. The sinks are in the order of `records`.
pub(super) fn receivers<'r>(
    records: &'r [Record],
    sender: &str,
) -> Result<BTreeMap<u64, Vec<(&'r str, bool)>>> {
    let mut receivers = BTreeMap::<_, Vec<_>>::new();
    for record in records {
        let mut seen = BTreeSet::new();
        for frame in record.frames.iter().filter(|frame| frame.sender == sender) {
            ensure!(
                seen.insert(frame.number),
                "{} got frame {} of {sender} twice",
                record.name,
                frame.number
            );
            receivers.entry(frame.number).or_default().push((record.name.as_str(), frame.is_repeat));
        }
    }
    Ok(receivers)
}

/// Returns the number of frames of an at-most-once sender that no sink received. Fails if a frame
/// arrived twice.
pub(super) fn missing(records: &[Record], sender: &str, status: &Status) -> Result<u64> {
    let receivers = receivers(records, sender)?;
    for (number, sinks) in &receivers {
        ensure!(*number <= status.sent, "frame {number} of {sender} was never sent");
        ensure!(sinks.len() == 1, "frame {number} of {sender} went to {sinks:?}");
        ensure!(!sinks[0].1, "frame {number} of {sender} is marked as a repeat");
    }
    Ok(status.sent - receivers.len() as u64)
}

/// Checks that all frames of an at-least-once sender arrived, and that at most one arrival of each
/// is not marked as a repeat. Returns the number of frames that arrived more than once.
pub(super) fn all_arrived(records: &[Record], sender: &str, status: &Status) -> Result<usize> {
    let receivers = receivers(records, sender)?;
    for number in 1..=status.sent {
        let sinks =
            receivers.get(&number).with_context(|| format!("no sink got frame {number} of {sender}"))?;
        let firsts = sinks.iter().filter(|(_, is_repeat)| !is_repeat).count();
        ensure!(firsts <= 1, "frame {number} of {sender} went to {sinks:?} without a mark of a repeat");
    }
    ensure!(
        receivers.len() as u64 == status.sent,
        "{sender} sent {} frames, but {} arrived",
        status.sent,
        receivers.len()
    );
    Ok(receivers.values().filter(|sinks| sinks.len() > 1).count())
}
