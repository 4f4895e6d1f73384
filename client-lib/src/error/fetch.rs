//! Errors of offering and fetching payloads.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::connect::DialError;
use super::listen::BindError;
use crate::reference::Reference;
use crate::resolve::ResolveError;

/// Reason why a payload was not put on offer.
///
/// # Examples
///
/// ```no_run
/// # async fn example(offers: &multinet_client::Offers, picture: Vec<u8>)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::{OfferError, OfferId};
///
/// match offers.offer(OfferId::try_from("camera-17")?, picture).await {
///     Ok(offer) => println!("{}", offer.reference()),
///     Err(OfferError::TooLarge { budget, .. }) => println!("more than {budget} bytes: in parts"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OfferError {
    /// The payload is larger than the budget, so it would never fit.
    #[error(
        "a payload of {length} bytes is larger than the budget of {budget} bytes: raise OffersBuilder::budget, or offer less"
    )]
    TooLarge {
        /// Length of the payload, in bytes.
        length: usize,
        /// Most bytes on offer at a time.
        budget: usize,
    },
    /// As many payloads are on offer, or wait for room in the budget, as may be.
    #[error(
        "{most} payloads are on offer or wait for room, as many as may be: wait until some are taken, and drop the Offers that have ended"
    )]
    TooMany {
        /// Most payloads on offer at a time.
        most: usize,
    },
    /// The frame's key or metadata is too long.
    #[error("the frame's {what} has {length} bytes, more than the {most} allowed")]
    HeaderTooLong {
        /// Part of the frame that is too long: key or metadata.
        what: &'static str,
        /// Length of that part, in bytes.
        length: usize,
        /// Longest part of this kind that is allowed, in bytes.
        most: usize,
    },
    /// The Offers have been closed, and take no more payloads.
    #[error("the Offers are closed")]
    Closed,
}

/// Reason why an offer ended before a fetcher had acknowledged its payload.
///
/// Do not acknowledge the message that led to the payload then. When that message is delivered
/// again, offer the payload again.
///
/// # Examples
///
/// ```no_run
/// # async fn example(offer: &multinet_client::Offer) {
/// use multinet_client::NotTaken;
///
/// match offer.taken().await {
///     Ok(()) => println!("the message can be acknowledged"),
///     Err(NotTaken::Deadline { after }) => println!("no fetcher took it within {after:?}"),
///     Err(error) => println!("{error}"),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotTaken {
    /// No fetcher acknowledged the payload before its deadline.
    #[error(
        "no fetcher acknowledged the payload within {} s: offer it again, or set a later OffersBuilder::deadline",
        after.as_secs()
    )]
    Deadline {
        /// Time for which the payload was on offer.
        after: Duration,
    },
    /// The program withdrew the offer.
    #[error("the offer was withdrawn before a fetcher acknowledged the payload")]
    Withdrawn,
    /// The Offers were closed.
    #[error("the Offers were closed before a fetcher acknowledged the payload: offer it again elsewhere")]
    Closed,
}

/// Error of [`Connector::fetch`](crate::Connector::fetch).
///
/// # Examples
///
/// ```no_run
/// # async fn example(connector: &multinet_client::Connector, text: &str)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use multinet_client::FetchError;
///
/// match connector.fetch("decode.vision.svc.multinet", "fetch", &text.parse()?).await {
///     Ok(frame) => frame.acknowledge(),
///     // The message before this one is delivered again, and its payload is offered again.
///     Err(error @ FetchError::NotFound { .. }) => println!("{error}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// No pod has had the payload on offer within the time limit, nor knows that it was taken. The
    /// pod that the reference names has said so, or is gone. Do not acknowledge the message with
    /// the reference.
    #[error(
        "no pod has {reference} on offer ({asked} asked within {} s): it was taken, its deadline has passed, or its pod is gone; \
         the program that offered it has to offer it again",
        waited.as_secs()
    )]
    NotFound {
        /// Reference to the payload.
        reference: Reference,
        /// Time waited for a pod that has the payload.
        waited: Duration,
        /// Number of pods that answered that they do not have it.
        asked: usize,
    },
    /// The pod that the reference names has not answered within the time limit. Other pods do not
    /// have the payload.
    #[error("the pod that has {reference} has not answered within {} s: {last}", waited.as_secs())]
    NoAnswer {
        /// Reference to the payload.
        reference: Reference,
        /// Time waited for an answer.
        waited: Duration,
        /// Reason why the pod could not be connected, if known, in words.
        last: String,
    },
    /// A pod answered that the payload was fetched and acknowledged before, and no pod offers it
    /// again: the message with its reference was delivered twice. It can be acknowledged.
    #[error("{reference} was taken: its payload has been acknowledged before")]
    Taken {
        /// Reference to the payload.
        reference: Reference,
    },
    /// No pod of the service could be asked within the time limit.
    #[error("no pod of {name} could be asked within {} s: {last}", waited.as_secs())]
    NoPeer {
        /// Service's name, as the caller gave it to `fetch`.
        name: String,
        /// Time waited for a pod that can be asked.
        waited: Duration,
        /// Latest answer of DNS, or reason why a pod could not be connected, in words.
        last: String,
    },
    /// The service's name or port, or the resolver's configuration, is wrong.
    #[error("cannot resolve {name}: {source}")]
    Resolve {
        /// Service's name, as the caller gave it to `fetch`.
        name: String,
        /// Error of the resolver.
        source: ResolveError,
    },
    /// No pod of the service can be connected, and waiting would not change that
    /// ([`DialError::is_lasting`]).
    #[error("no pod of {name} can be connected: {last}")]
    Lasting {
        /// Service's name, as the caller gave it to `fetch`.
        name: String,
        /// Reason why one of the pods cannot be connected.
        last: Arc<DialError>,
    },
    /// The payload is larger than this side accepts.
    #[error(
        "{reference} has {length} bytes, more than the {most} that this side accepts: raise ConnectorBuilder::fetch_frame_size"
    )]
    TooLarge {
        /// Reference to the payload.
        reference: Reference,
        /// Length of the payload, in bytes.
        length: u64,
        /// Largest payload that this side accepts, in bytes.
        most: u64,
    },
    /// There is no memory for payloads.
    #[error("there is no room for payloads: {0}")]
    Slots(BindError),
    /// The connection ended because the [`Connector`](crate::Connector)'s last handle was dropped.
    #[error("the Connector is closed")]
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_where_and_what_to_do() {
        let reference: Reference = "decode-0/camera-17".parse().unwrap();
        let waited = Duration::from_secs(150);
        let table = [
            (
                FetchError::NotFound { reference: reference.clone(), waited, asked: 3 },
                "no pod has decode-0/camera-17 on offer (3 asked within 150 s): it was taken, its deadline has passed, \
                 or its pod is gone; the program that offered it has to offer it again",
            ),
            (
                FetchError::NoPeer { name: "decode".to_owned(), waited, last: "no endpoint".to_owned() },
                "no pod of decode could be asked within 150 s: no endpoint",
            ),
            (
                FetchError::TooLarge { reference, length: 9 << 20, most: 1 << 20 },
                "decode-0/camera-17 has 9437184 bytes, more than the 1048576 that this side accepts: \
                 raise ConnectorBuilder::fetch_frame_size",
            ),
        ];
        for (error, expected) in table {
            assert_eq!(error.to_string(), expected);
        }
    }
}
