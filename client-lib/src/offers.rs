//! Puts payloads on offer, for others to fetch by reference.

mod builder;
mod fetchers;
mod ledger;
mod statistics;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::builder::OffersBuilder;
use self::ledger::{Added, LinePlace, NotOffered, OfferKey, OfferLedger, OfferState, Wake};
pub use self::statistics::OffersStatistics;
use crate::answer::ANSWER;
use crate::error::{NotTaken, OfferError};
use crate::frame::Frame;
use crate::listener::Listener;
use crate::reference::{HostName, OfferId, Reference};
use crate::wire::MAX_METADATA;

/// Most payloads on offer, and callers that wait for room.
const MAX_OFFERS: usize = 1 << 16;

/// Payloads on offer, which other pods fetch by their references. A clone is another handle for the
/// same. When the last handle is dropped, nothing is on offer any more, and the port is free again.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::Offers;
///
/// let offers = Offers::builder().budget(1 << 30).bind().await?;
/// let offer = offers.offer("camera-17/4711".parse()?, vec![0; 8 << 20]).await?;
/// // By a queue, to the pod that gets the message.
/// println!("{}", offer.reference());
/// offer.taken().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Offers {
    handle: Arc<OffersHandle>,
}

/// State of all handles, which ends the offers when the last one is dropped.
struct OffersHandle {
    shared: Arc<OffersState>,
    listener: Listener,
    tasks: TaskTracker,
}

/// State that handles, offers and connections share.
struct OffersState {
    state: Mutex<LockedLedger>,
    /// Notified when a deadline may have become the next one.
    earlier: Notify,
    host: HostName,
    deadline: Duration,
    budget: usize,
    /// Connections from fetchers.
    fetchers: AtomicUsize,
    end: CancellationToken,
}

/// The ledger, and the tasks that wait for what happens there.
struct LockedLedger {
    ledger: OfferLedger<Frame>,
    /// Tasks that wait for the end of an offer, or for their turn in line.
    waiting: HashMap<Wake, Arc<Notify>>,
}

/// A payload on offer. A clone is another handle for the same.
///
/// When all handles are dropped, the payload stays on offer until it is taken or its deadline has
/// passed.
///
/// # Examples
///
/// ```no_run
/// # async fn example(
/// #     offers: &multinet_client::Offers,
/// #     mut queue: impl AsyncFnMut(String),
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let offer = offers.offer("camera-17/4711".parse()?, vec![0; 8 << 20]).await?;
/// queue(offer.reference().to_string()).await;
/// offer.taken().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Offer {
    offered: Arc<Offered>,
}

/// State of all handles of an offer.
struct Offered {
    shared: Arc<OffersState>,
    id: OfferId,
    /// `None` for an id that was taken lately.
    key: Option<OfferKey>,
}

/// Place in line, which is given up when this is dropped.
struct Waiting<'s> {
    shared: &'s OffersState,
    place: Option<LinePlace>,
}

impl Offers {
    /// Returns a builder with all settings at their defaults.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Offers;
    ///
    /// let offers = Offers::builder().port(18516).service("decode.vision").bind().await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> OffersBuilder {
        OffersBuilder::default()
    }

    /// Puts a payload on offer, with its key and metadata. Waits while the budget is full; callers
    /// are served in the order in which they came.
    ///
    /// The caller chooses the id, and offers a payload again under the same id: one that is on
    /// offer gives the same offer, and the frame is dropped. One that was taken lately gives an
    /// offer that is [taken](Offer::taken) already, since the message was only delivered again.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     offers: &multinet_client::Offers,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use multinet_client::Frame;
    ///
    /// let picture = Frame::new(vec![0; 1920 * 1080 * 3]).metadata("1920x1080 rgb24");
    /// let offer = offers.offer("camera-17/4711".parse()?, picture).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`OfferError`], if waiting would not help.
    pub async fn offer(&self, id: OfferId, frame: impl Into<Frame>) -> Result<Offer, OfferError> {
        let shared = &self.handle.shared;
        let mut frame = frame.into();
        shared.check(&frame)?;
        let length = frame.len();
        let mut waiting = Waiting { shared, place: None };
        loop {
            let now = Instant::now().into_std();
            let deadline = now + shared.deadline;
            #[expect(clippy::result_large_err, reason = "the frame itself is what is given back")]
            let outcome = shared.with(|state| {
                let added = state.ledger.offer(now, &id, (frame, length), deadline, waiting.place.take());
                added.map_err(|(frame, refused)| match refused {
                    NotOffered::Full(place) => {
                        waiting.place = Some(place);
                        Ok((frame, state.until(Wake::Turn(place))))
                    }
                    NotOffered::TooLarge => Err(OfferError::TooLarge { length, budget: shared.budget }),
                    NotOffered::TooMany => Err(OfferError::TooMany { most: MAX_OFFERS }),
                    NotOffered::Closed => Err(OfferError::Closed),
                })
            });
            match outcome {
                Ok(Added::New(key) | Added::Same(key)) => {
                    shared.earlier.notify_one();
                    return Ok(Offer::new(shared, id, Some(key)));
                }
                Ok(Added::Taken) => return Ok(Offer::new(shared, id, None)),
                Err(Err(error)) => return Err(error),
                Err(Ok((back, turn))) => {
                    frame = back;
                    turn.await;
                }
            }
        }
    }

    /// Returns the addresses that fetchers connect to.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let offers = multinet_client::Offers::builder().bind().await?;
    /// // By default, the addresses of all second NICs.
    /// println!("{:?}", offers.local_addresses());
    /// # Ok(()) }
    /// ```
    pub fn local_addresses(&self) -> &[SocketAddr] {
        self.handle.listener.local_addresses()
    }

    /// Returns the host name that references have.
    ///
    /// ```no_run
    /// # fn example(offers: &multinet_client::Offers) {
    /// println!("payloads of {}", offers.host());
    /// # }
    /// ```
    pub fn host(&self) -> &str {
        self.handle.shared.host.as_str()
    }

    /// Returns the counts of payloads on offer and their fetches.
    ///
    /// ```no_run
    /// # fn example(offers: &multinet_client::Offers) {
    /// let now = offers.statistics();
    /// println!("{} of {} bytes are on offer", now.bytes, now.budget);
    /// # }
    /// ```
    pub fn statistics(&self) -> OffersStatistics {
        let OffersState { state, budget, fetchers, .. } = &*self.handle.shared;
        let refused = self.handle.listener.statistics().refused;
        let counts = state.lock().ledger.counts();
        OffersStatistics::new(counts, *budget, fetchers.load(Ordering::Relaxed), refused)
    }

    /// Ends all offers, and closes the connections and the port.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     offers: multinet_client::Offers,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// tokio::signal::ctrl_c().await?;
    /// // Tasks that wait for an offer to be taken get NotTaken::Closed.
    /// offers.close().await;
    /// # Ok(()) }
    /// ```
    pub async fn close(&self) {
        self.handle.end();
        self.handle.tasks.close();
        self.handle.tasks.wait().await;
        self.handle.listener.close().await;
    }
}

impl OffersHandle {
    fn end(&self) {
        self.shared.with(|state| state.ledger.close());
        self.shared.end.cancel();
        self.listener.end();
    }
}

impl Drop for OffersHandle {
    fn drop(&mut self) {
        self.end();
    }
}

impl OffersState {
    /// Calls the ledger, wakes the tasks that wait for what happens, and drops what the ledger has
    /// released.
    fn with<T>(&self, call: impl FnOnce(&mut LockedLedger) -> T) -> T {
        let (value, woken, released) = {
            let mut state = self.state.lock();
            let value = call(&mut state);
            let LockedLedger { ledger, waiting } = &mut *state;
            let woken: Vec<_> =
                std::iter::from_fn(|| ledger.next_wake()).filter_map(|wake| waiting.remove(&wake)).collect();
            (value, woken, std::mem::take(ledger.released()))
        };
        // Not under the lock: dropping memory may run the program's code.
        drop(released);
        woken.iter().for_each(|task| task.notify_waiters());
        value
    }

    /// Checks that the frame's key and metadata can be sent, with the answer before them.
    fn check(&self, frame: &Frame) -> Result<(), OfferError> {
        let own = (frame.metadata.len() > MAX_METADATA - ANSWER).then_some((
            "metadata",
            frame.metadata.len(),
            MAX_METADATA - ANSWER,
        ));
        match frame.oversized_part().or(own) {
            Some((what, length, most)) => Err(OfferError::HeaderTooLong { what, length, most }),
            None => Ok(()),
        }
    }

    /// Ends the offers whose deadlines pass.
    async fn run_deadlines(&self) {
        loop {
            let mut earlier = std::pin::pin!(self.earlier.notified());
            earlier.as_mut().enable();
            let due = self.with(|state| {
                state.ledger.tick(Instant::now().into_std());
                state.ledger.due()
            });
            let due = async {
                match due {
                    Some(due) => sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                () = earlier => {}
            }
        }
    }
}

impl LockedLedger {
    /// Returns a future that ends when this has happened, from now on.
    fn until(&mut self, wake: Wake) -> OwnedNotified {
        Arc::clone(self.waiting.entry(wake).or_default()).notified_owned()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.shared.with(|state| {
                state.ledger.leave(place);
                state.waiting.remove(&Wake::Turn(place));
            });
        }
    }
}

impl Offer {
    fn new(shared: &Arc<OffersState>, id: OfferId, key: Option<OfferKey>) -> Self {
        Self { offered: Arc::new(Offered { shared: Arc::clone(shared), id, key }) }
    }

    /// Returns the reference by which other pods fetch the payload.
    ///
    /// ```no_run
    /// # fn example(offer: &multinet_client::Offer) {
    /// // As `decode-0/camera-17/4711`.
    /// println!("{}", offer.reference());
    /// # }
    /// ```
    pub fn reference(&self) -> Reference {
        Reference::new(self.offered.shared.host.clone(), self.offered.id.clone())
    }

    /// Waits until the payload has been fetched and acknowledged.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     offer: &multinet_client::Offer,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// // Only now is the message that led to the payload acknowledged upstream.
    /// offer.taken().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`NotTaken`], if the offer has ended otherwise.
    pub async fn taken(&self) -> Result<(), NotTaken> {
        let Offered { shared, key, .. } = &*self.offered;
        let Some(key) = *key else { return Ok(()) };
        loop {
            let ended = shared.with(|state| match state.ledger.state(key) {
                Some(OfferState::Open) => Err(state.until(Wake::Ended(key))),
                Some(OfferState::Taken) => Ok(Ok(())),
                Some(OfferState::Deadline) => Ok(Err(NotTaken::Deadline { after: shared.deadline })),
                Some(OfferState::Withdrawn) => Ok(Err(NotTaken::Withdrawn)),
                Some(OfferState::Closed) | None => Ok(Err(NotTaken::Closed)),
            });
            match ended {
                Ok(outcome) => return outcome,
                Err(end) => end.await,
            }
        }
    }

    /// Ends the offer. A fetch that has begun goes on; others do not find the payload any more.
    ///
    /// ```no_run
    /// # async fn example(offer: multinet_client::Offer) {
    /// // The queue did not take the reference.
    /// offer.withdraw();
    /// # }
    /// ```
    pub fn withdraw(&self) {
        if let Some(key) = self.offered.key {
            let now = Instant::now().into_std();
            self.offered.shared.with(|state| state.ledger.withdraw(now, key));
        }
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.shared.with(|state| {
                // The id may have been offered again, and other handles wait for the end.
                if state.ledger.forget(key) {
                    state.waiting.remove(&Wake::Ended(key));
                }
            });
        }
    }
}

impl fmt::Debug for Offers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offers").field("host", &self.host()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Offer").field(&self.reference().to_string()).finish()
    }
}
