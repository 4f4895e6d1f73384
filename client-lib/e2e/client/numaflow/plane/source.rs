//! Data plane of a vertex with a user-defined source.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use futures::channel::mpsc;
use numaflow::proto::source::source_client::SourceClient;
use numaflow::proto::source::{
    AckRequest, Handshake, NackRequest, ReadRequest, ack_request, nack_request, read_request, read_response,
};
use parking_lot::Mutex;
use tokio::sync::mpsc as queue;

use super::{Flow, connect};
use crate::numaflow::buffer::Message;

/// Time that a read waits for a first message, in milliseconds.
const TIMEOUT: u32 = 100;

/// One message in so many is rejected.
const REJECT: u32 = 100;

/// Offsets in progress.
type InProgress = Arc<Mutex<HashSet<Vec<u8>>>>;

/// Reads from the function, and writes its messages to the output, until a call fails, since it has
/// died.
pub(in crate::numaflow) async fn run(socket: PathBuf, flow: Arc<Flow>) -> Result<()> {
    let Some(channel) = connect(socket).await else { return Ok(()) };
    let (in_progress, (sender, messages)) = (InProgress::default(), queue::channel(flow.at_once));
    // Numaflow reads on while it writes and acknowledges.
    tokio::select! {
        ended = read(SourceClient::new(channel.clone()), &flow, &in_progress, sender) => ended,
        ended = write(SourceClient::new(channel), &flow, &in_progress, messages) => ended,
    }
}

async fn read(
    mut client: SourceClient<tonic::transport::Channel>,
    flow: &Flow,
    in_progress: &InProgress,
    messages: queue::Sender<read_response::Result>,
) -> Result<()> {
    let Ok(partitions) = client.partitions_fn(()).await else { return Ok(()) };
    let partitions = partitions.into_inner().result.context("no partitions")?;
    ensure!(partitions.partitions.len() == 1, "{partitions:?}");
    let (requests, stream) = mpsc::unbounded();
    requests.unbounded_send(ReadRequest { request: None, handshake: Some(Handshake { sot: true }) })?;
    let Ok(answers) = client.read_fn(stream).await else { return Ok(()) };
    let mut answers = answers.into_inner();
    let Ok(Some(first)) = answers.message().await else { return Ok(()) };
    ensure!(first.handshake.is_some(), "{first:?}");
    loop {
        let request = read_request::Request { num_records: flow.at_once as u64, timeout_in_ms: TIMEOUT };
        let _ = requests.unbounded_send(ReadRequest { request: Some(request), handshake: None });
        loop {
            // The function has died.
            let Ok(Some(answer)) = answers.message().await else { return Ok(()) };
            if answer.status.is_some_and(|status| status.eot) {
                break;
            }
            let message = answer.result.context("an answer without a message")?;
            let offset = message.offset.as_ref().context("a message without an offset")?;
            ensure!(offset.partition_id == partitions.partitions[0], "{offset:?}");
            if in_progress.lock().insert(offset.offset.clone()) {
                if messages.send(message).await.is_err() {
                    return Ok(());
                }
            } else {
                flow.tally.lock().duplicates += 1;
            }
        }
    }
}

/// Writes messages, and acknowledges or rejects them.
async fn write(
    mut client: SourceClient<tonic::transport::Channel>,
    flow: &Flow,
    in_progress: &InProgress,
    mut messages: queue::Receiver<read_response::Result>,
) -> Result<()> {
    let (requests, stream) = mpsc::unbounded();
    requests.unbounded_send(AckRequest { request: None, handshake: Some(Handshake { sot: true }) })?;
    let Ok(answers) = client.ack_fn(stream).await else { return Ok(()) };
    let mut answers = answers.into_inner();
    let Ok(Some(first)) = answers.message().await else { return Ok(()) };
    ensure!(first.handshake.is_some(), "{first:?}");
    while let Some(message) = messages.recv().await {
        let offset = message.offset.clone().context("an offset")?;
        if fastrand::u32(..REJECT) == 0 {
            flow.tally.lock().rejected += 1;
            in_progress.lock().remove(&offset.offset);
            let request = nack_request::Request { offsets: vec![offset], nack_options: None };
            if client.nack_fn(NackRequest { request: vec![request] }).await.is_err() {
                return Ok(());
            }
            continue;
        }
        // All that are there go together.
        let mut offsets = vec![offset];
        publish(flow, message).await?;
        while let Ok(message) = messages.try_recv() {
            offsets.push(message.offset.clone().context("an offset")?);
            publish(flow, message).await?;
        }
        let Ok(pending) = client.pending_fn(()).await else { return Ok(()) };
        let pending = pending.into_inner().result.context("no number")?.count;
        // Those that are written are not acknowledged yet.
        ensure!(pending >= offsets.len() as i64, "{pending} are pending, {} in progress", offsets.len());
        let request = ack_request::Request { offsets: offsets.clone() };
        let _ = requests.unbounded_send(AckRequest { request: Some(request), handshake: None });
        let Ok(Some(_)) = answers.message().await else { return Ok(()) };
        let mut in_progress = in_progress.lock();
        in_progress.retain(|offset| !offsets.iter().any(|done| done.offset == *offset));
    }
    Ok(())
}

async fn publish(flow: &Flow, message: read_response::Result) -> Result<()> {
    let (value, offset) = (String::from_utf8(message.payload.clone())?, message.offset.context("an offset")?);
    let offset = String::from_utf8(offset.offset)?;
    ensure!(message.headers.get("multinet-id") == Some(&offset), "{:?}", message.headers);
    flow.tally.lock().offsets.entry(value).or_default().insert(offset.clone());
    let output = Message {
        offset: 0,
        id: format!("receive-{offset}-0"),
        keys: message.keys,
        value: message.payload,
        headers: message.headers.into_iter().collect(),
        time: message.event_time.context("an event time")?.seconds,
    };
    flow.output.publish(output).await;
    Ok(())
}
