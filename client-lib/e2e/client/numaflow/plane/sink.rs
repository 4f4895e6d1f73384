//! Data plane of a vertex with a user-defined sink.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use futures::channel::mpsc;
use numaflow::proto::sink::sink_client::SinkClient;
use numaflow::proto::sink::{Handshake, SinkRequest, SinkResponse, Status, TransmissionStatus, sink_request};
use tonic::Streaming;

use super::{Flow, connect};
use crate::numaflow::buffer::{Buffer, Delivery, Message};

/// Hands the input to the function in batches, until it dies. What fails goes to the fallback sink,
/// as with `retryStrategy: {backoff: {steps: 1}, onFailure: fallback}`.
pub(in crate::numaflow) async fn run(socket: PathBuf, flow: Arc<Flow>, input: Arc<Buffer>) -> Result<()> {
    let Some(channel) = connect(socket).await else { return Ok(()) };
    let mut client = SinkClient::new(channel);
    let (requests, stream) = mpsc::unbounded();
    requests
        .unbounded_send(SinkRequest { handshake: Some(Handshake { sot: true }), ..SinkRequest::default() })?;
    let Ok(answers) = client.sink_fn(stream).await else { return Ok(()) };
    let mut answers = answers.into_inner();
    let Ok(Some(first)) = answers.message().await else { return Ok(()) };
    ensure!(first.handshake.is_some(), "{first:?}");
    loop {
        let mut batch = vec![input.next().await];
        batch.extend(std::iter::from_fn(|| input.try_next()).take(flow.at_once - 1));
        for delivery in &batch {
            // If the function has died, its stream says so.
            let _ = requests.unbounded_send(request(delivery.message()));
        }
        let _ = requests.unbounded_send(SinkRequest {
            status: Some(TransmissionStatus { eot: true }),
            ..SinkRequest::default()
        });
        let Some(mut outcomes) = outcomes(&mut answers).await? else {
            batch.into_iter().for_each(Delivery::give_back);
            return Ok(());
        };
        for delivery in batch {
            let message = delivery.message();
            let outcome = outcomes.get_mut(&message.id).and_then(Vec::pop);
            match outcome.context("no answer for a message")? {
                Status::Success => {}
                Status::Failure => {
                    flow.tally.lock().fallen_back.push(String::from_utf8_lossy(&message.value).into_owned());
                }
                other => bail!("{other:?}"),
            }
            delivery.acknowledge();
        }
        ensure!(outcomes.values().all(Vec::is_empty), "more answers than messages: {outcomes:?}");
    }
}

/// Reads the answers for one batch, by id: a batch has several messages of one id where one came
/// again after the buffer's window. `None` if the function has died.
async fn outcomes(answers: &mut Streaming<SinkResponse>) -> Result<Option<HashMap<String, Vec<Status>>>> {
    let mut outcomes: HashMap<String, Vec<Status>> = HashMap::new();
    loop {
        let Ok(Some(answer)) = answers.message().await else { return Ok(None) };
        for result in answer.results {
            outcomes.entry(result.id).or_default().push(Status::try_from(result.status)?);
        }
        if answer.status.is_some_and(|status| status.eot) {
            return Ok(Some(outcomes));
        }
    }
}

fn request(message: &Message) -> SinkRequest {
    let mut request = sink_request::Request {
        keys: message.keys.clone(),
        value: message.value.clone(),
        event_time: Some(Default::default()),
        watermark: Some(Default::default()),
        id: message.id.clone(),
        headers: message.headers.iter().cloned().collect(),
        metadata: None,
    };
    if let Some(time) = &mut request.event_time {
        time.seconds = message.time;
    }
    SinkRequest { request: Some(request), status: None, handshake: None }
}
