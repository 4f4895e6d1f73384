//! The sending side: a user-defined sink.

use std::env;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use multinet_client::{Buffer, ConnectorBuilder, Delivery, Frame, PeerSet, ResolveError, Sent, Target};
use numaflow::sink::{Response, SinkRequest, Sinker};
use ring::digest::{SHA256, digest};
use tokio::sync::mpsc;
use tonic::async_trait;
use tracing::warn;

use super::envelope::Envelope;

/// The longest key of a frame, in bytes.
const MAX_KEY: usize = 255;

/// Sink that sends each message as a frame to a vertex of another Pipeline, or to a MonoVertex, and
/// answers when the Numaflow there has acknowledged it.
///
/// - While no receiver has room, the sink waits, and Numaflow hands it no more messages. So
///   back-pressure reaches the source.
/// - A frame has its message's keys, headers and event time, and its id after the names of
///   namespace, Pipeline and vertex. Its own key, by which
///   [`Choice::ByKey`](multinet_client::Choice::ByKey) chooses a receiver, is made of the keys.
/// - A message whose frame cannot be sent, such as one that is too large, has failed. Numaflow
///   retries it as the Pipeline's `sink.retryStrategy` says.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use std::time::Duration;
///
/// use multinet_client::{Choice, Targets};
/// use multinet_client_numaflow::FrameSink;
/// use numaflow::sink::Server;
///
/// let targets = Targets::from_env()?;
/// let connector = targets.connector().choice(Choice::LeastOutstanding);
/// let sink = FrameSink::start(connector, targets.target()?)?;
/// Server::new(sink).start().await
/// # }
/// ```
pub struct FrameSink {
    peers: PeerSet,
    /// Beginning of the ids of this vertex' messages.
    origin: String,
    payload: Payload,
}

/// Function that makes the payload of a message's frame.
type Payload = Box<dyn Fn(&SinkRequest) -> Buffer + Send + Sync>;

impl FrameSink {
    /// Creates a sink that sends to the pods of a vertex. It does not wait for the first of them.
    /// Frames are delivered at least once, whatever the builder says.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Targets;
    /// use multinet_client_numaflow::FrameSink;
    ///
    /// let targets = Targets::from_env()?;
    /// let sink = FrameSink::start(targets.connector(), targets.target()?)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`ConnectorBuilder::build`].
    pub fn start(connector: ConnectorBuilder, target: &Target) -> Result<Self, ResolveError> {
        let connector = connector.delivery(Delivery::AtLeastOnce).build()?;
        let payload = Box::new(|request: &SinkRequest| request.value.clone().into());
        let origin = origin(|name| env::var(name).ok());
        Ok(Self { peers: target.start(&connector), origin, payload })
    }

    /// Sets the function that makes a frame's payload of a message. Default: the message's value.
    ///
    /// ```no_run
    /// # fn example(sink: multinet_client_numaflow::FrameSink) {
    /// use multinet_client::Buffer;
    /// use numaflow::sink::SinkRequest;
    ///
    /// // The value of a message is small; the picture that it names is not.
    /// let sink = sink.payload(|message: &SinkRequest| {
    ///     let mut picture = Buffer::host(1920 * 1080 * 3);
    ///     if let Some(pixels) = picture.as_mut() {
    ///         pixels.fill(message.value.first().copied().unwrap_or_default());
    ///     }
    ///     picture
    /// });
    /// # }
    /// ```
    #[must_use]
    pub fn payload(mut self, payload: impl Fn(&SinkRequest) -> Buffer + Send + Sync + 'static) -> Self {
        self.payload = Box::new(payload);
        self
    }

    /// Returns the pods that frames are sent to, for statistics and metrics.
    ///
    /// ```no_run
    /// # fn example(sink: &multinet_client_numaflow::FrameSink) {
    /// println!("{} pods are connected", sink.peers().statistics().connected);
    /// # }
    /// ```
    pub fn peers(&self) -> &PeerSet {
        &self.peers
    }

    /// Sends a message's frame. Waits while no receiver has room.
    async fn send(&self, request: &SinkRequest) -> Result<Sent, String> {
        let envelope = Envelope {
            id: format!("{}{}", self.origin, request.id),
            keys: request.keys.clone(),
            headers: request.headers.clone(),
        };
        let frame = Frame::new((self.payload)(request))
            .key(key(&request.keys))
            .metadata(envelope.encode())
            .timestamp(request.event_time.into());
        self.peers.send(frame).await.map_err(|error| error.to_string())
    }
}

#[async_trait]
impl Sinker for FrameSink {
    async fn sink(&self, mut input: mpsc::Receiver<SinkRequest>) -> Vec<Response> {
        let (mut responses, mut waiting) = (Vec::new(), FuturesUnordered::new());
        while let Some(request) = input.recv().await {
            match self.send(&request).await {
                Ok(sent) => waiting.push(async move {
                    match sent.acknowledged().await {
                        Ok(()) => Response::ok(request.id),
                        Err(error) => failure(request.id, error.to_string()),
                    }
                }),
                Err(error) => responses.push(failure(request.id, error)),
            }
        }
        while let Some(response) = waiting.next().await {
            responses.push(response);
        }
        responses
    }
}

fn failure(id: String, reason: String) -> Response {
    warn!("the frame of {id:.300} has not reached the other Pipeline, and is not acknowledged: {reason}");
    Response::failure(id, reason)
}

/// Returns a text that the ids of this vertex' messages begin with: in Numaflow, vertices of two
/// Pipelines may use the same ids.
fn origin(variable: impl Fn(&str) -> Option<String>) -> String {
    let names = ["NAMESPACE", "PIPELINE_NAME", "MONO_VERTEX_NAME", "VERTEX_NAME"];
    let names = names.iter().filter_map(|name| variable(&format!("NUMAFLOW_{name}")));
    names.filter(|name| !name.is_empty()).map(|name| format!("{name}/")).collect()
}

/// Returns the key of a frame: the keys of its message, or a digest of them if they are too long.
fn key(keys: &[String]) -> Vec<u8> {
    let key = keys.join(":").into_bytes();
    if key.len() <= MAX_KEY { key } else { digest(&SHA256, &key).as_ref().to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_begin_with_the_names_that_numaflow_gives() {
        let pipeline = |name: &str| match name {
            "NUMAFLOW_NAMESPACE" => Some("vision".to_owned()),
            "NUMAFLOW_PIPELINE_NAME" => Some("capture".to_owned()),
            "NUMAFLOW_VERTEX_NAME" => Some("send".to_owned()),
            _ => Some(String::new()),
        };
        assert_eq!(origin(pipeline), "vision/capture/send/");
        assert_eq!(origin(|_| None), "");
    }

    #[test]
    fn the_key_of_a_frame_is_made_of_all_keys_and_short_enough() {
        let keys = |keys: &[&str]| key(&keys.iter().map(|&key| key.to_owned()).collect::<Vec<_>>());
        assert_eq!(keys(&["camera", "17"]), b"camera:17");
        assert_eq!(keys(&[]), b"");
        let long = "x".repeat(MAX_KEY);
        assert_eq!(keys(&[&long]).len(), MAX_KEY);
        assert_eq!(keys(&[&long, "a"]).len(), 32);
        assert_ne!(keys(&[&long, "a"]), keys(&[&long, "b"]));
    }
}
