//! Data plane of a map vertex whose function is of the kind MapStream.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use futures::channel::mpsc;
use numaflow::proto::map::map_client::MapClient;
use numaflow::proto::map::{Handshake, MapRequest, map_request};

use super::{Flow, connect};
use crate::numaflow::buffer::{Delivery, Message};

/// A message in progress, and the number of its outputs so far.
struct InProgress {
    delivery: Delivery,
    outputs: usize,
}

/// Calls the function for messages of the input, and writes what it emits, until it dies.
pub(in crate::numaflow) async fn run(socket: PathBuf, flow: Arc<Flow>) -> Result<()> {
    let Some(channel) = connect(socket).await else { return Ok(()) };
    let mut client = MapClient::new(channel);
    let (requests, stream) = mpsc::unbounded();
    requests
        .unbounded_send(MapRequest { handshake: Some(Handshake { sot: true }), ..MapRequest::default() })?;
    let Ok(answers) = client.map_fn(stream).await else { return Ok(()) };
    let mut answers = answers.into_inner();
    let Ok(Some(first)) = answers.message().await else { return Ok(()) };
    ensure!(first.handshake.is_some(), "{first:?}");
    let mut in_progress: HashMap<String, InProgress> = HashMap::new();
    loop {
        let answer = tokio::select! {
            delivery = flow.input.next(), if in_progress.len() < flow.at_once => {
                let id = delivery.message().offset.to_string();
                // If the function has died, its stream says so.
                let _ = requests.unbounded_send(request(id.clone(), delivery.message()));
                in_progress.insert(id, InProgress { delivery, outputs: 0 });
                continue;
            }
            answer = answers.message() => answer,
        };
        let Ok(Some(answer)) = answer else {
            in_progress.into_values().for_each(|message| message.delivery.give_back());
            return Ok(());
        };
        if answer.status.is_some_and(|status| status.eot) {
            let done = in_progress.remove(&answer.id).context("an end without a message")?;
            done.delivery.acknowledge();
            continue;
        }
        let parent = in_progress.get_mut(&answer.id).context("an answer without a message")?;
        for output in answer.results {
            let message = parent.delivery.message();
            let (host_and_id, time) = (String::from_utf8(output.value.clone())?, message.time);
            let (_, id) = host_and_id.split_once('/').context("no reference")?;
            flow.tally.lock().ids.entry(message.offset).or_default().insert(id.to_owned());
            let output = Message {
                offset: 0,
                id: format!("decode-{}-{}", message.offset, parent.outputs),
                keys: output.keys,
                value: output.value,
                headers: Vec::new(),
                time,
            };
            parent.outputs += 1;
            // Nothing else is written while the buffer is full.
            flow.output.publish(output).await;
        }
    }
}

fn request(id: String, message: &Message) -> MapRequest {
    let mut request = map_request::Request {
        keys: message.keys.clone(),
        value: message.value.clone(),
        event_time: Some(Default::default()),
        watermark: Some(Default::default()),
        headers: message.headers.iter().cloned().collect(),
        metadata: None,
    };
    if let Some(time) = &mut request.event_time {
        time.seconds = message.time;
    }
    MapRequest { request: Some(request), id, handshake: None, status: None }
}
