//! Ids of payloads.

use multinet_client::OfferId;
use numaflow::mapstream::MapStreamRequest;
use ring::digest::{Context, SHA256};

use crate::boundary::ID_HEADER;

/// Number of bytes of the digest that an id has.
const DIGEST: usize = 16;

/// Returns an id for the payload of a message: the same when Numaflow delivers the message again.
///
/// It is the header `multinet-id`, which [`FrameSource`](crate::FrameSource) sets, or else a digest
/// of keys, event time and value. Two messages that agree in all three count as one, so give those
/// ids of your own.
///
/// # Examples
///
/// ```
/// use multinet_client_numaflow::stable_id;
/// use numaflow::mapstream::MapStreamRequest;
///
/// let message = |value: &[u8]| MapStreamRequest {
///     keys: vec!["camera-17".into()],
///     value: value.into(),
///     watermark: Default::default(),
///     eventtime: Default::default(),
///     headers: Default::default(),
/// };
/// assert_eq!(stable_id(&message(b"a picture")), stable_id(&message(b"a picture")));
/// assert_ne!(stable_id(&message(b"a picture")), stable_id(&message(b"another")));
/// ```
pub fn stable_id(message: &MapStreamRequest) -> OfferId {
    if let Some(id) = message.headers.get(ID_HEADER).and_then(|id| id.parse().ok()) {
        return id;
    }
    let mut digest = Context::new(&SHA256);
    let time = message.eventtime;
    digest.update(&time.timestamp().to_be_bytes());
    digest.update(&time.timestamp_subsec_nanos().to_be_bytes());
    for part in message.keys.iter().map(String::as_bytes).chain([&*message.value]) {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let digest = digest.finish();
    let text: String = digest.as_ref()[..DIGEST].iter().map(|byte| format!("{byte:02x}")).collect();
    text.parse().unwrap_or_else(|_| unreachable!("hexadecimal digits are an id"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use chrono::DateTime;

    use super::*;

    #[test]
    fn an_id_depends_on_the_header_or_else_on_keys_time_and_value() {
        let message = |keys: &[&str], nanoseconds, value: &str, header: Option<&str>| MapStreamRequest {
            keys: keys.iter().map(|&key| key.to_owned()).collect(),
            value: value.into(),
            watermark: DateTime::default(),
            eventtime: DateTime::from_timestamp_nanos(nanoseconds),
            headers: header.map(|id| (ID_HEADER.to_owned(), id.to_owned())).into_iter().collect(),
        };
        let id = |message| stable_id(&message).to_string();
        assert_eq!(id(message(&["a"], 1, "v", Some("camera/7"))), "camera/7");
        // A header that is no id counts for nothing.
        assert_eq!(id(message(&["a"], 1, "v", Some("two words"))), id(message(&["a"], 1, "v", None)));
        let different = [
            message(&["a"], 1, "v", None),
            message(&["a"], 2, "v", None),
            message(&["a"], 1, "w", None),
            message(&["b"], 1, "v", None),
            message(&["a", ""], 1, "v", None),
            message(&[], 1, "av", None),
        ];
        let ids: HashMap<String, usize> = different.into_iter().map(id).zip(0..).collect();
        assert_eq!(ids.len(), 6, "{ids:?}");
        assert!(ids.keys().all(|id| id.len() == 2 * DIGEST));
    }
}
