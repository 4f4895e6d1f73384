//! The side that fetches payloads: a user-defined sink.

use std::fmt::Display;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use multinet_client::{Connector, FetchError, Received, Reference, ReferenceError, Target, TargetsError};
use numaflow::sink::{Response, SinkRequest, Sinker};
use tokio::sync::{Semaphore, mpsc};
use tonic::async_trait;
use tracing::warn;

/// Number of payloads that are processed at a time, unless set.
const AT_ONCE: usize = 8;

/// Sink that fetches the payload of each reference, has it processed, and acknowledges it after
/// that.
///
/// | event | the reference |
/// |---|---|
/// | the payload was processed | is acknowledged, after the payload |
/// | the function returns an error | has failed; the payload stays on offer |
/// | a pod says that the payload was taken, for an earlier delivery | is acknowledged |
/// | no pod has the payload within the [time][fetch_wait] | has failed |
/// | the value is no reference | has failed |
///
/// Numaflow retries a message that has failed as the Pipeline's `sink.retryStrategy` says: for
/// ever, by default. A reference is never acknowledged because its payload is not found.
///
/// [fetch_wait]: multinet_client::ConnectorBuilder::fetch_wait
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use multinet_client::Targets;
/// use multinet_client_numaflow::FetchingSink;
/// use numaflow::sink::Server;
///
/// let targets = Targets::from_env()?;
/// let connector = targets.connector().fetch_frame_size(16 << 20).build()?;
/// let infer = FetchingSink::new(connector.clone(), targets.sources(), |picture, message| {
///     Box::pin(async move {
///         let file = format!("/data/{}", message.id);
///         tokio::fs::write(file, picture.bytes()).await
///     })
/// })?;
/// Server::new(infer).start().await?;
/// // The last acknowledgements are sent before the program ends.
/// connector.close().await;
/// # Ok(()) }
/// ```
pub struct FetchingSink<F> {
    connector: Connector,
    sources: Vec<Target>,
    process: F,
    /// Places of the payloads that are processed at a time.
    places: Semaphore,
}

impl<F, E> FetchingSink<F>
where
    F: for<'a> Fn(&'a Received, &'a SinkRequest) -> BoxFuture<'a, Result<(), E>> + Send + Sync + 'static,
    E: Display + Send + 'static,
{
    /// Creates a sink that fetches from the pods of these vertices. `process` has done its work
    /// with a payload when it returns.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Targets;
    /// use multinet_client_numaflow::FetchingSink;
    ///
    /// let targets = Targets::from_env()?;
    /// let sink = FetchingSink::new(targets.connector().build()?, targets.sources(), |frame, _| {
    ///     Box::pin(async move {
    ///         println!("{} bytes", frame.len());
    ///         Ok::<(), String>(())
    ///     })
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`TargetsError`](multinet_client::TargetsError), if there is no vertex to fetch from.
    pub fn new(connector: Connector, sources: &[Target], process: F) -> Result<Self, TargetsError> {
        if sources.is_empty() {
            return Err(TargetsError::Missing { variable: "MULTINET_SOURCES" });
        }
        Ok(Self { connector, sources: sources.to_vec(), process, places: Semaphore::new(AT_ONCE) })
    }

    /// Sets how many payloads are processed at a time. Default: 8. Others are fetched meanwhile, up
    /// to the [slots](multinet_client::ConnectorBuilder::fetch_slots).
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # use multinet_client_numaflow::FetchingSink;
    /// # let targets = multinet_client::Targets::from_env()?;
    /// # let sink = FetchingSink::new(targets.connector().build()?, targets.sources(), |_, _| {
    /// #     Box::pin(async move { Ok::<(), String>(()) })
    /// # })?;
    /// // The model has one stream on the GPU.
    /// let sink = sink.at_once(1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn at_once(mut self, count: usize) -> Self {
        self.places = Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS));
        self
    }

    async fn handle(&self, request: SinkRequest) -> Response {
        let text = String::from_utf8_lossy(&request.value);
        match self.fetch_and_process(&text, &request).await {
            Ok(()) => Response::ok(request.id),
            Err(reason) => {
                warn!("{text:.300} is not processed, and not acknowledged: {reason}");
                Response::failure(request.id, reason)
            }
        }
    }

    async fn fetch_and_process(&self, text: &str, request: &SinkRequest) -> Result<(), String> {
        let reference: Reference = text.parse().map_err(|error: ReferenceError| error.to_string())?;
        match self.fetch(&reference).await {
            Ok(frame) => {
                // Not before the fetch: a payload that is not found would keep others waiting.
                let _place = self.places.acquire().await;
                (self.process)(&frame, request).await.map_err(|error| error.to_string())?;
                frame.acknowledge();
                Ok(())
            }
            // An earlier delivery was processed, or the payload would not have been acknowledged.
            Err(FetchError::Taken { .. }) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Fetches from the vertex of the pod that the reference names, or else from all at a time.
    async fn fetch(&self, reference: &Reference) -> Result<Received, FetchError> {
        let ask = |source: &Target| {
            let (source, connector, reference) = (source.clone(), self.connector.clone(), reference.clone());
            async move { source.fetch(&connector, &reference).await }
        };
        let is_named = |source: &&Target| is_pod_of(reference.host(), source.name());
        let named: FuturesUnordered<_> = self.sources.iter().filter(is_named).map(ask).collect();
        let mut asking = if named.is_empty() { self.sources.iter().map(ask).collect() } else { named };
        let mut failure = FetchError::Closed;
        while let Some(outcome) = asking.next().await {
            match outcome {
                Err(error) if !matches!(error, FetchError::Taken { .. }) => failure = error,
                found => return found,
            }
        }
        Err(failure)
    }
}

/// Returns whether Numaflow gives pods of the vertex `VERTEX.PIPELINE.…` this host name.
fn is_pod_of(host: &str, vertex: &str) -> bool {
    let mut labels = vertex.split('.');
    let (Some(vertex), Some(pipeline)) = (labels.next(), labels.next()) else { return false };
    let rest = host.strip_prefix(pipeline).and_then(|rest| rest.strip_prefix('-'));
    let replica = rest.and_then(|rest| rest.strip_prefix(vertex)?.strip_prefix('-'));
    replica.is_some_and(|replica| !replica.is_empty() && replica.bytes().all(|b| b.is_ascii_digit()))
}

#[async_trait]
impl<F, E> Sinker for FetchingSink<F>
where
    F: for<'a> Fn(&'a Received, &'a SinkRequest) -> BoxFuture<'a, Result<(), E>> + Send + Sync + 'static,
    E: Display + Send + 'static,
{
    async fn sink(&self, mut input: mpsc::Receiver<SinkRequest>) -> Vec<Response> {
        let (mut responses, mut working) = (Vec::new(), FuturesUnordered::new());
        let mut is_open = true;
        loop {
            tokio::select! {
                request = input.recv(), if is_open => match request {
                    Some(request) => working.push(self.handle(request)),
                    None => is_open = false,
                },
                Some(response) = working.next() => responses.push(response),
                else => return responses,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_belongs_to_the_vertex_whose_pod_it_names() {
        let name = "decode.video.vision.vertexdomain.local.";
        assert!(is_pod_of("video-decode-0", name) && is_pod_of("video-decode-12", name));
        for other in ["video-decode-", "video-decode-a-0", "video-decode2-0", "other-decode-0", "decode-0"] {
            assert!(!is_pod_of(other, name), "{other}");
        }
        assert!(!is_pod_of("video-decode-0", "decode"));
    }
}
