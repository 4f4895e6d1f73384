//! What sources and sinks say, and whether it adds up.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context as _, Result, ensure};

use super::vertex::Record;

/// What a source says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) sent: u64,
    pub(super) acknowledged: u64,
    pub(super) repeats: u64,
    pub(super) lost: u64,
    pub(super) disconnects: u64,
    pub(super) connected: u64,
}

/// What a sink says of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) number: u64,
    pub(super) is_repeat: bool,
    pub(super) key: String,
    pub(super) sender: String,
}

impl Status {
    /// The last one in a log.
    pub(super) fn last(log: &str) -> Result<Self> {
        Self::all(log)?.pop().context("it has not said anything yet")
    }

    /// All of them, in their order.
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
    /// All frames in a log, in their order. A line that a SIGKILL has cut off was not received.
    pub(super) fn all(log: &str) -> Result<Vec<Self>> {
        let complete = log.rsplit_once('\n').map_or("", |(lines, _)| lines);
        let lines = complete.lines().filter_map(|line| line.strip_prefix("frame "));
        lines.map(|line| Self::parse(line).with_context(|| format!("frame {line}"))).collect()
    }

    fn parse(line: &str) -> Result<Self> {
        let fields: Vec<_> = line.split(' ').collect();
        let [number, which @ ("first" | "repeat"), key, sender] = fields[..] else {
            anyhow::bail!("not what a sink says");
        };
        // Where the checksum is wrong, this says `corrupt`.
        let number = number.parse().with_context(|| format!("the number is {number}"))?;
        Ok(Self { number, is_repeat: which == "repeat", key: key.to_owned(), sender: sender.to_owned() })
    }
}

/// Who had which of a sender's frames: sinks by number, with the mark of a repeat, in the order of `records`.
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
                "{} has had frame {} of {sender} twice",
                record.name,
                frame.number
            );
            receivers.entry(frame.number).or_default().push((record.name.as_str(), frame.is_repeat));
        }
    }
    Ok(receivers)
}

/// How many frames of an at-most-once sender nobody has had. None may have arrived twice.
pub(super) fn missing(records: &[Record], sender: &str, status: &Status) -> Result<u64> {
    let receivers = receivers(records, sender)?;
    for (number, sinks) in &receivers {
        ensure!(*number <= status.sent, "frame {number} of {sender} was never sent");
        ensure!(sinks.len() == 1, "frame {number} of {sender} went to {sinks:?}");
        ensure!(!sinks[0].1, "frame {number} of {sender} is marked as a repeat");
    }
    Ok(status.sent - receivers.len() as u64)
}

/// All frames of an at-least-once sender have arrived, and of none does more than one arrival claim to be the first. Gives how many arrived
/// more than once.
pub(super) fn all_arrived(records: &[Record], sender: &str, status: &Status) -> Result<usize> {
    let receivers = receivers(records, sender)?;
    for number in 1..=status.sent {
        let sinks =
            receivers.get(&number).with_context(|| format!("nobody has had frame {number} of {sender}"))?;
        let firsts = sinks.iter().filter(|(_, is_repeat)| !is_repeat).count();
        ensure!(firsts <= 1, "frame {number} of {sender} went to {sinks:?}, and nobody was told");
    }
    ensure!(
        receivers.len() as u64 == status.sent,
        "{sender} sent {} frames, {} came",
        status.sent,
        receivers.len()
    );
    Ok(receivers.values().filter(|sinks| sinks.len() > 1).count())
}
