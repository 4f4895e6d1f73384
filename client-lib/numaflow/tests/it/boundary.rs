//! Frames from a sink to a source.

use std::sync::Arc;
use std::time::Duration;

use multinet_client::{Listener, Targets};
use multinet_client_numaflow::{FrameSink, FrameSource};
use numaflow::sink::{ResponseType, SinkRequest, Sinker, SystemMetadata, UserMetadata};
use numaflow::source::{Message, NackOffset, Offset, SourceReadRequest, Sourcer};
use tokio::sync::mpsc::channel;
use tokio::task::JoinHandle;

use super::{LOOPBACK, PATIENCE, connector, soon};

/// Time that a read waits, which is over only if nothing comes.
const TIMEOUT: Duration = Duration::from_millis(100);

async fn source() -> (FrameSource, u16) {
    let listener = Listener::builder().address(LOOPBACK).port(0).bind().await.unwrap();
    let port = listener.local_addresses()[0].port();
    (FrameSource::new(listener), port)
}

/// Hands messages with these ids to a sink of its own. The task ends with its answers.
fn send(port: u16, ids: &[&str]) -> JoinHandle<Vec<String>> {
    let targets = Targets::parse(&format!("{LOOPBACK}:{port}"), "", "").unwrap();
    let (sender, input) = channel(100);
    for &id in ids {
        let request = SinkRequest {
            keys: vec!["camera".to_owned(), "17".to_owned()],
            value: format!("value of {id}").into_bytes(),
            watermark: Default::default(),
            event_time: chrono::DateTime::from_timestamp(1_700_000_000, 5).unwrap(),
            id: id.to_owned(),
            headers: [("lens".to_owned(), "wide".to_owned())].into(),
            user_metadata: UserMetadata::new(),
            system_metadata: SystemMetadata::new(),
        };
        sender.try_send(request).ok().unwrap();
    }
    drop(sender);
    tokio::spawn(async move {
        let sink = FrameSink::start(connector(), targets.target().unwrap()).unwrap();
        let responses = sink.sink(input).await;
        assert!(responses.iter().all(|response| matches!(response.response_type, ResponseType::Success)));
        responses.into_iter().map(|response| response.id).collect()
    })
}

/// Reads once, as the SDK does in the task of the stream of reads.
async fn read(source: &FrameSource, count: usize) -> Vec<Message> {
    let (sender, mut messages) = channel(100);
    soon(source.read(SourceReadRequest { count, timeout: TIMEOUT }, sender)).await;
    let mut read = Vec::new();
    while let Ok(message) = messages.try_recv() {
        read.push(message);
    }
    read
}

/// Reads until so many messages have come.
async fn read_all(source: &FrameSource, count: usize) -> Vec<Message> {
    let mut all = Vec::new();
    soon(async {
        while all.len() < count {
            all.extend(read(source, count - all.len()).await);
        }
    })
    .await;
    all
}

fn offset(message: &Message) -> Offset {
    Offset { offset: message.offset.offset.clone(), partition_id: message.offset.partition_id }
}

#[tokio::test]
async fn a_message_crosses_whole_and_its_sink_answers_once_it_is_acknowledged() {
    let (source, port) = source().await;
    let sent = send(port, &["camera-7-0"]);
    let [message] = &read_all(&source, 1).await[..] else { panic!("one message") };
    assert_eq!((&*message.value, &*message.offset.offset), (&b"value of camera-7-0"[..], &b"camera-7-0"[..]));
    assert_eq!(message.keys, ["camera", "17"]);
    assert_eq!(
        (message.event_time.timestamp(), message.event_time.timestamp_subsec_nanos()),
        (1_700_000_000, 5)
    );
    assert_eq!((&*message.headers["lens"], &*message.headers["multinet-id"]), ("wide", "camera-7-0"));
    assert_eq!((source.pending().await, source.active_partitions().await), (Some(1), Some(vec![0])));
    assert!(!sent.is_finished());
    source.ack(vec![offset(message)]).await;
    assert_eq!(soon(sent).await.unwrap(), ["camera-7-0"]);
    assert_eq!(source.pending().await, Some(0));
}

#[tokio::test]
async fn a_message_that_is_rejected_comes_again() {
    let (source, port) = source().await;
    let sent = send(port, &["1", "2"]);
    let messages = read_all(&source, 2).await;
    source.ack(vec![offset(&messages[0])]).await;
    source.nack(vec![NackOffset { offset: offset(&messages[1]), options: None }]).await;
    let [again] = &read_all(&source, 1).await[..] else { panic!("one message") };
    assert_eq!(again.offset.offset, messages[1].offset.offset);
    source.ack(vec![offset(again)]).await;
    assert_eq!(soon(sent).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_repeat_is_acknowledged_with_the_message_or_after_it() {
    let (source, port) = source().await;
    let first = send(port, &["1"]);
    let [message] = &read_all(&source, 1).await[..] else { panic!("one message") };
    // The sink's pod was replaced, and its Numaflow delivers the message again.
    let meanwhile = send(port, &["1"]);
    while source.pending().await != Some(2) {
        assert!(read(&source, 1).await.is_empty());
    }
    source.ack(vec![offset(message)]).await;
    soon(first).await.unwrap();
    soon(meanwhile).await.unwrap();
    let later = send(port, &["1"]);
    soon(async {
        while !later.is_finished() {
            assert!(read(&source, 1).await.is_empty());
        }
    })
    .await;
}

#[tokio::test]
async fn frames_of_a_data_plane_that_has_restarted_come_again() {
    let (source, port) = source().await;
    let source = Arc::new(source);
    let sent = send(port, &["1", "2"]);
    let (mut sessions, mut last) = (0, Vec::new());
    while sessions < 3 {
        // Each task stands for the SDK's task of one stream of reads.
        let source = Arc::clone(&source);
        last = tokio::spawn(async move { read_all(&source, 2).await }).await.unwrap();
        sessions += 1;
    }
    source.ack(last.iter().map(offset).collect()).await;
    assert_eq!(soon(sent).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_read_of_a_data_plane_that_has_gone_keeps_no_frame() {
    let (source, port) = source().await;
    let source = Arc::new(source);
    let (sender, mut messages) = channel(100);
    let reading = Arc::clone(&source);
    let request = SourceReadRequest { count: 1, timeout: PATIENCE };
    let stale = tokio::spawn(async move { reading.read(request, sender).await });
    // It waits for a frame, and gets the next one.
    tokio::task::yield_now().await;
    let reading = Arc::clone(&source);
    let live = tokio::spawn(async move { read_all(&reading, 1).await });
    tokio::task::yield_now().await;
    let sent = send(port, &["1"]);
    let [message] = &soon(live).await.unwrap()[..] else { panic!("one message") };
    soon(stale).await.unwrap();
    assert!(messages.try_recv().is_err());
    source.ack(vec![offset(message)]).await;
    soon(sent).await.unwrap();
}
