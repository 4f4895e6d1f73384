//! The side that puts payloads on offer: a user-defined function of the kind MapStream.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;
use std::time::Duration;

use multinet_client::{BindError, Frame, Offer, OfferId, Offers, OffersBuilder};
use numaflow::mapstream::{MapStreamRequest, MapStreamer, Message};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tonic::async_trait;
use tracing::{debug, error};

use super::shares::{Share, Shares};
use super::stream::Answer;

/// Time after which a reference is emitted again, unless set: more than a window in which
/// Numaflow's buffers drop repeats.
const REPEAT: Duration = Duration::from_secs(120);

/// A payload to put on offer, and the message with its reference.
///
/// # Examples
///
/// ```
/// use multinet_client::Frame;
/// use multinet_client_numaflow::Claim;
///
/// let picture = Frame::new(vec![0; 1920 * 1080 * 3]).metadata("1920x1080 rgb24");
/// let claim = Claim::new("camera-17/4711".parse()?, picture).tags(vec!["pictures".into()]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Claim {
    id: OfferId,
    frame: Frame,
    keys: Option<Vec<String>>,
    tags: Option<Vec<String>>,
}

impl Claim {
    /// Creates a claim. Its id has to be the same when its message is delivered again, as that of
    /// [`stable_id`](crate::stable_id) is.
    ///
    /// ```
    /// # fn example(message: numaflow::mapstream::MapStreamRequest) {
    /// use multinet_client_numaflow::{Claim, stable_id};
    ///
    /// let claim = Claim::new(stable_id(&message), message.value);
    /// # }
    /// ```
    pub fn new(id: OfferId, frame: impl Into<Frame>) -> Self {
        Self { id, frame: frame.into(), keys: None, tags: None }
    }

    /// Sets the keys of the message with the reference. Default: those of the message that led to
    /// the payload.
    ///
    /// ```
    /// # use multinet_client_numaflow::Claim;
    /// # fn example(claim: Claim) {
    /// let claim = claim.keys(vec!["camera-17".into()]);
    /// # }
    /// ```
    #[must_use]
    pub fn keys(mut self, keys: Vec<String>) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Sets the tags of the message with the reference, for conditional forwarding. Default: none.
    ///
    /// ```
    /// # use multinet_client_numaflow::Claim;
    /// # fn example(claim: Claim) {
    /// let claim = claim.tags(vec!["pictures".into()]);
    /// # }
    /// ```
    #[must_use]
    pub fn tags(mut self, tags: Vec<String>) -> Self {
        self.tags = Some(tags);
        self
    }
}

/// Map function that puts a payload on offer for each message, emits its reference, and ends its
/// answer once the payload has been taken. Only then Numaflow acknowledges the message.
///
/// - While the budget of the [`Offers`] is full, messages wait, and Numaflow reads no more of them
///   than it has in progress at a time. So back-pressure reaches the source.
/// - The reference of a payload that nothing has taken for two minutes is emitted again. That frees
///   payloads whose first reference a buffer took for a repeat, and dropped.
/// - A message is never rejected: Numaflow before 1.8.2 would forward an empty message instead.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use multinet_client::{Offers, Targets};
/// use multinet_client_numaflow::{Claim, OfferingMap, stable_id};
/// use numaflow::mapstream::{MapStreamRequest, Server};
///
/// let port = Targets::from_env()?.target()?.port();
/// let offers = Offers::builder().port(port).budget(4 << 30);
/// let decode = OfferingMap::bind(offers, async |message: MapStreamRequest| {
///     // No payload: the message is acknowledged, and nothing is emitted.
///     (!message.value.is_empty()).then(|| Claim::new(stable_id(&message), message.value))
/// });
/// // The port is bound before the server starts: the pod is ready once that answers.
/// Server::new(decode.await?).start().await
/// # }
/// ```
pub struct OfferingMap<F> {
    offers: Offers,
    decode: F,
    /// Places of the messages that are decoded at a time.
    places: Semaphore,
    repeat: Duration,
    /// Offers that open answers wait for.
    shares: Shares,
}

/// A payload on offer, and the message with its reference.
struct Offered {
    offer: Offer,
    keys: Vec<String>,
    tags: Option<Vec<String>>,
    /// Withdraws the offer with the last answer that waits for it.
    _share: Share,
}

impl<F, D> OfferingMap<F>
where
    F: Fn(MapStreamRequest) -> D + Send + Sync + 'static,
    D: Future<Output = Option<Claim>> + Send,
{
    /// Starts to listen for fetchers, and creates the map function from a function that turns a
    /// message into a payload. If that returns `None`, the message is acknowledged at once, and
    /// nothing is emitted. A payload stays on offer until it is taken, whatever deadline the
    /// builder has.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Offers;
    /// use multinet_client_numaflow::{Claim, OfferingMap, stable_id};
    /// use numaflow::mapstream::MapStreamRequest;
    ///
    /// let decode = OfferingMap::bind(Offers::builder(), async |message: MapStreamRequest| {
    ///     Some(Claim::new(stable_id(&message), message.value))
    /// });
    /// let decode = decode.await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`OffersBuilder::bind`].
    pub async fn bind(offers: OffersBuilder, decode: F) -> Result<Self, BindError> {
        let offers = offers.deadline(Duration::MAX).bind().await?;
        let cores = available_parallelism().map_or(1, NonZeroUsize::get);
        let (places, shares) = (Semaphore::new(cores), Shares::default());
        Ok(Self { offers, decode, places, repeat: REPEAT, shares })
    }

    /// Returns the payloads on offer, for statistics and metrics.
    ///
    /// ```no_run
    /// # use multinet_client_numaflow::{Claim, OfferingMap};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let decode = OfferingMap::bind(multinet_client::Offers::builder(), async |_| None).await?;
    /// let now = decode.offers().statistics();
    /// println!("{} of {} bytes are on offer", now.bytes, now.budget);
    /// # Ok(()) }
    /// ```
    pub fn offers(&self) -> &Offers {
        &self.offers
    }

    /// Sets the time after which the reference of a payload that nothing has taken is emitted
    /// again. Default: 2 minutes. The buffers' window in which they drop repeats has to be shorter.
    ///
    /// ```no_run
    /// # use multinet_client_numaflow::{Claim, OfferingMap};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let decode = OfferingMap::bind(multinet_client::Offers::builder(), async |_| None).await?;
    /// use std::time::Duration;
    ///
    /// let decode = decode.repeat_after(Duration::from_secs(600));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn repeat_after(mut self, time: Duration) -> Self {
        self.repeat = time;
        self
    }

    /// Sets how many messages are turned into payloads at a time: so many payloads may be in memory
    /// beyond the budget. Default: the number of CPU cores.
    ///
    /// ```no_run
    /// # use multinet_client_numaflow::{Claim, OfferingMap};
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # let decode = OfferingMap::bind(multinet_client::Offers::builder(), async |_| None).await?;
    /// // There is one decoder in hardware.
    /// let decode = decode.at_once(1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn at_once(mut self, count: usize) -> Self {
        self.places = Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS));
        self
    }

    /// Makes a payload, and puts it on offer. `None` if the message needs no further work, or can
    /// never be offered.
    async fn offer(&self, message: MapStreamRequest) -> Result<Option<Offered>, ()> {
        let keys = message.keys.clone();
        // The semaphore is never closed.
        let _place = self.places.acquire().await;
        let Some(Claim { id, frame, keys: own, tags }) = (self.decode)(message).await else {
            return Ok(None);
        };
        let share = self.shares.join(id.clone());
        match self.offers.offer(id.clone(), frame).await {
            Ok(offer) => {
                share.set(offer.clone());
                Ok(Some(Offered { offer, keys: own.unwrap_or(keys), tags, _share: share }))
            }
            Err(error) => {
                error!("{id} cannot be offered, and its message stays unacknowledged: {error}");
                Err(())
            }
        }
    }
}

#[async_trait]
impl<F, D> MapStreamer for OfferingMap<F>
where
    F: Fn(MapStreamRequest) -> D + Send + Sync + 'static,
    D: Future<Output = Option<Claim>> + Send,
{
    async fn map_stream(&self, input: MapStreamRequest, sender: mpsc::Sender<Message>) {
        let answer = Answer::new(sender);
        match self.offer(input).await {
            // The SDK emits nothing before this function has returned.
            Ok(Some(offered)) => {
                tokio::spawn(hold(offered, answer, self.repeat));
            }
            Ok(None) => answer.end(),
            Err(()) => {}
        }
    }
}

/// Emits the reference of an offer, now and whenever it was not taken for a time, and ends the
/// answer when it is.
async fn hold(offered: Offered, answer: Answer, repeat: Duration) {
    let Offered { offer, keys, tags, _share } = offered;
    loop {
        let mut message = Message::new(offer.reference().to_string().into_bytes());
        (message.keys, message.tags) = (Some(keys.clone()), tags.clone());
        if !answer.emit(message).await {
            // Numaflow has restarted, and delivers the message again, here or elsewhere.
            debug!("the answer for {offer:?} is not awaited any more");
            return;
        }
        match timeout(repeat, offer.taken()).await {
            Ok(Ok(())) => return answer.end(),
            Err(_) => {}
            // The program ends.
            Ok(Err(_)) => return,
        }
    }
}
