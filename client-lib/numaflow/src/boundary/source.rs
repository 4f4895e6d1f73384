//! The receiving side: a user-defined source.

use std::collections::HashMap;
use std::env;
use std::time::{Duration, SystemTime};

use multinet_client::{Listener, Received};
use numaflow::source::{Message, NackOffset, Offset, SourceReadRequest, Sourcer};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task;
use tokio::time::{sleep, timeout};
use tonic::async_trait;

use super::envelope::{Envelope, ID_HEADER};
use super::recent::Recent;

/// Time after which a rejected frame is given back, unless Numaflow names another. It has to be
/// done with the message by then: it drops a message whose offset it still works on.
const PAUSE: Duration = Duration::from_millis(100);

/// Source whose messages are the frames that a listener receives.
///
/// | Numaflow | the frame |
/// |---|---|
/// | acknowledges the message | is acknowledged to its sender; so is a repeat within a minute |
/// | rejects the message | is given back, and comes again, here or at another pod |
/// | restarts | is given back |
///
/// A message has the frame's timestamp as its event time, and the id of the message that the frame
/// was made of as its offset and as its header `multinet-id`. So the buffer after this source drops
/// a repeat that comes by another pod within its window.
///
/// The source's backlog is the frames that have arrived and that Numaflow has not acknowledged. It
/// is bounded by the slots of the listener: further frames wait at their senders.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use multinet_client::{Listener, Targets};
/// use multinet_client_numaflow::FrameSource;
/// use numaflow::source::Server;
///
/// let port = Targets::from_env()?.source()?.port();
/// // Bound before the server starts: the pod is ready once that answers.
/// let listener = Listener::builder().port(port).slots(64).bind().await?;
/// let frames = FrameSource::new(listener).value(|picture| {
///     // The picture is used here. What goes on through Numaflow is small.
///     format!("{} bytes", picture.len()).into_bytes()
/// });
/// Server::new(frames).start().await
/// # }
/// ```
pub struct FrameSource {
    listener: Listener,
    value: Value,
    /// Number of this replica, which is the partition of its messages.
    partition: i32,
    held: Mutex<Held>,
}

/// Function that makes a message's value of a frame.
type Value = Box<dyn Fn(&Received) -> Vec<u8> + Send + Sync>;

/// Frames whose messages Numaflow has, and has not decided on.
#[derive(Default)]
struct Held {
    /// By offset. An offset has several frames if its sender sent it again meanwhile.
    frames: HashMap<Vec<u8>, Vec<Received>>,
    /// Task of the SDK that serves the data plane's stream of reads.
    reader: Option<task::Id>,
    /// Offsets that Numaflow has acknowledged.
    acknowledged: Recent,
}

impl FrameSource {
    /// Creates a source from a listener, which has to be bound before the source's server starts.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Listener;
    /// use multinet_client_numaflow::FrameSource;
    ///
    /// let frames = FrameSource::new(Listener::builder().port(18515).bind().await?);
    /// # Ok(()) }
    /// ```
    pub fn new(listener: Listener) -> Self {
        let replica = env::var("NUMAFLOW_REPLICA").ok().and_then(|replica| replica.parse().ok());
        Self {
            listener,
            value: Box::new(|frame| frame.bytes().to_vec()),
            partition: replica.unwrap_or_default(),
            held: Mutex::default(),
        }
    }

    /// Sets the function that makes a message's value of a frame. Default: the payload, for which
    /// Numaflow's buffers need room: a message may have 1 MB there by default.
    ///
    /// ```no_run
    /// # fn example(frames: multinet_client_numaflow::FrameSource) {
    /// let frames = frames.value(|frame| frame.len().to_string().into_bytes());
    /// # }
    /// ```
    #[must_use]
    pub fn value(mut self, value: impl Fn(&Received) -> Vec<u8> + Send + Sync + 'static) -> Self {
        self.value = Box::new(value);
        self
    }

    /// Notes which task reads now. If it is another one, the data plane has connected anew, and the
    /// frames that it had before are given back.
    fn note_reader(&self, reader: Option<task::Id>) {
        let mut held = self.held.lock();
        let abandoned = if held.reader == reader { HashMap::new() } else { std::mem::take(&mut held.frames) };
        held.reader = reader;
        drop(held);
        drop(abandoned);
    }

    /// Keeps a frame for the data plane of this reader, and returns its message. `None` if the
    /// frame is a repeat of one that Numaflow has or had, or if another data plane has connected.
    fn hold(&self, frame: Received, reader: Option<task::Id>) -> Option<Message> {
        let envelope = Envelope::decode(frame.metadata());
        let Envelope { id, keys, mut headers } = envelope.unwrap_or_else(|| of_another_sender(&frame));
        let offset = id.clone().into_bytes();
        let (value, time) = ((self.value)(&frame), frame.timestamp().unwrap_or_else(SystemTime::now));
        let mut held = self.held.lock();
        if held.reader != reader {
            return None;
        }
        if held.acknowledged.has(&offset) {
            drop(held);
            frame.acknowledge();
            return None;
        }
        let frames = held.frames.entry(offset.clone()).or_default();
        frames.push(frame);
        if frames.len() > 1 {
            return None;
        }
        drop(held);
        headers.insert(ID_HEADER.to_owned(), id);
        let offset = Offset { offset, partition_id: self.partition };
        Some(Message { value, offset, event_time: time.into(), keys, headers, user_metadata: None })
    }
}

/// Returns the parts of a message from a sender that is no [`FrameSink`](crate::FrameSink).
fn of_another_sender(frame: &Received) -> Envelope {
    let id = frame.id();
    let key = Some(String::from_utf8_lossy(frame.key()).into_owned());
    Envelope {
        id: format!("{:032x}-{}", id.session, id.sequence),
        keys: key.into_iter().filter(|key| !key.is_empty()).collect(),
        headers: HashMap::new(),
    }
}

#[async_trait]
impl Sourcer for FrameSource {
    /// Waits for a frame, and takes those that have come by then.
    async fn read(&self, request: SourceReadRequest, transmitter: mpsc::Sender<Message>) {
        let reader = task::try_id();
        self.note_reader(reader);
        let mut frame = match timeout(request.timeout, self.listener.recv()).await {
            Ok(Ok(frame)) => Some(frame),
            // The listener is closed when the program ends.
            Ok(Err(_)) | Err(_) => None,
        };
        let mut left = request.count;
        while let Some(next) = frame {
            if let Some(message) = self.hold(next, reader) {
                // If Numaflow has gone, its next read gives the frame back.
                if transmitter.send(message).await.is_err() {
                    return;
                }
                left = left.saturating_sub(1);
            }
            frame = if left > 0 { self.listener.try_recv() } else { None };
        }
    }

    async fn ack(&self, offsets: Vec<Offset>) {
        let mut done = Vec::new();
        {
            let mut held = self.held.lock();
            for Offset { offset, .. } in offsets {
                done.extend(held.frames.remove(&offset).unwrap_or_default());
                held.acknowledged.add(offset);
            }
        }
        done.into_iter().for_each(Received::acknowledge);
    }

    async fn nack(&self, offsets: Vec<NackOffset>) {
        for NackOffset { offset, options } in offsets {
            let frames = self.held.lock().frames.remove(&offset.offset);
            let pause = options.and_then(|options| options.delay).map_or(PAUSE, Duration::from_millis);
            tokio::spawn(async move {
                sleep(pause).await;
                drop(frames);
            });
        }
    }

    async fn pending(&self) -> Option<usize> {
        let held: usize = self.held.lock().frames.values().map(Vec::len).sum();
        Some(self.listener.statistics().waiting + held)
    }

    async fn active_partitions(&self) -> Option<Vec<i32>> {
        Some(vec![self.partition])
    }
}
