//! The parts of dnstap's protobuf messages that an authoritative server fills in
//! (<https://github.com/dnstap/dnstap.pb/blob/master/dnstap.proto>).

use std::net::IpAddr;
use std::time::SystemTime;

use bytes::{BufMut, Bytes};
use prost::Message as _;

use super::Exchange;

/// Value of `Dnstap.Type` for a DNS message.
const MESSAGE: i32 = 1;

/// Values of `Message.Type` for queries to, and replies of, an authoritative server.
const AUTH_QUERY: i32 = 1;
const AUTH_RESPONSE: i32 = 2;

/// Content of a data frame: the dnstap message with its sender.
#[derive(Clone, PartialEq, prost::Message)]
struct Dnstap {
    #[prost(bytes = "bytes", optional, tag = "1")]
    identity: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    version: Option<Bytes>,
    #[prost(message, optional, tag = "14")]
    message: Option<Message>,
    #[prost(int32, required, tag = "15")]
    kind: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Message {
    #[prost(int32, required, tag = "1")]
    kind: i32,
    #[prost(int32, optional, tag = "2")]
    socket_family: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    socket_protocol: Option<i32>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    query_address: Option<Bytes>,
    #[prost(uint32, optional, tag = "6")]
    query_port: Option<u32>,
    #[prost(uint64, optional, tag = "8")]
    query_time_sec: Option<u64>,
    #[prost(fixed32, optional, tag = "9")]
    query_time_nsec: Option<u32>,
    #[prost(bytes = "bytes", optional, tag = "10")]
    query_message: Option<Bytes>,
    #[prost(uint64, optional, tag = "12")]
    response_time_sec: Option<u64>,
    #[prost(fixed32, optional, tag = "13")]
    response_time_nsec: Option<u32>,
    #[prost(bytes = "bytes", optional, tag = "14")]
    response_message: Option<Bytes>,
}

/// Encodes queries and their replies as dnstap messages of this server.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    /// Name of this host or pod, as the sender of the messages.
    pub(super) identity: Bytes,
    /// Name and version of this program.
    pub(super) version: Bytes,
}

impl Encoder {
    /// Appends one data frame for the query, and one for the reply if there is one.
    pub(super) fn write(&self, exchange: &Exchange, out: &mut Vec<u8>) {
        let asked = since_epoch(exchange.asked_at);
        let (family, address) = match exchange.peer.ip().to_canonical() {
            IpAddr::V4(ip) => (1, Bytes::copy_from_slice(&ip.octets())),
            IpAddr::V6(ip) => (2, Bytes::copy_from_slice(&ip.octets())),
        };
        let both = Message {
            kind: AUTH_QUERY,
            socket_family: Some(family),
            socket_protocol: Some(exchange.proto.dnstap_number()),
            query_address: Some(address),
            query_port: Some(exchange.peer.port().into()),
            query_time_sec: Some(asked.0),
            query_time_nsec: Some(asked.1),
            ..Message::default()
        };
        self.frame(Message { query_message: Some(exchange.query()), ..both.clone() }, out);
        let reply = exchange.reply();
        if !reply.is_empty() {
            let answered = since_epoch(exchange.answered_at);
            let message = Message {
                kind: AUTH_RESPONSE,
                response_time_sec: Some(answered.0),
                response_time_nsec: Some(answered.1),
                response_message: Some(reply),
                ..both
            };
            self.frame(message, out);
        }
    }

    fn frame(&self, message: Message, out: &mut Vec<u8>) {
        let (identity, version) = (Some(self.identity.clone()), Some(self.version.clone()));
        let dnstap = Dnstap { identity, version, message: Some(message), kind: MESSAGE };
        // Two DNS messages and a few fields are far below 4 GiB.
        out.put_u32(dnstap.encoded_len() as u32);
        dnstap.encode_raw(out);
    }
}

/// Returns a time as seconds and nanoseconds since 1970.
fn since_epoch(time: SystemTime) -> (u64, u32) {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_secs(), since.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::answer::proto::Proto;

    #[test]
    fn an_exchange_is_two_frames() {
        let at = |nanos| SystemTime::UNIX_EPOCH + Duration::new(7, nanos);
        let peer = "[::ffff:192.0.2.1]:5353".parse().unwrap();
        let bytes = Bytes::from_static(b"queryreply");
        let exchange =
            Exchange { proto: Proto::Quic, peer, asked_at: at(5), answered_at: at(6), bytes, query_len: 5 };
        let encoder = Encoder { identity: "pod-1".into(), version: "multinet-dns 1".into() };
        let mut out = Vec::new();
        encoder.write(&exchange, &mut out);

        let mut rest = &out[..];
        let mut frames = Vec::new();
        while let Some((length, tail)) = rest.split_first_chunk() {
            let (frame, tail) = tail.split_at(u32::from_be_bytes(*length) as usize);
            frames.push(Dnstap::decode(frame).unwrap());
            rest = tail;
        }
        let query = Message {
            kind: AUTH_QUERY,
            socket_family: Some(1),
            socket_protocol: Some(7),
            query_address: Some(Bytes::from_static(&[192, 0, 2, 1])),
            query_port: Some(5353),
            query_time_sec: Some(7),
            query_time_nsec: Some(5),
            query_message: Some("query".into()),
            ..Message::default()
        };
        let reply = Message {
            kind: AUTH_RESPONSE,
            query_message: None,
            response_time_sec: Some(7),
            response_time_nsec: Some(6),
            response_message: Some("reply".into()),
            ..query.clone()
        };
        let dnstap = |message| Dnstap {
            identity: Some("pod-1".into()),
            version: Some("multinet-dns 1".into()),
            message: Some(message),
            kind: MESSAGE,
        };
        assert_eq!(frames, [dnstap(query), dnstap(reply)]);
    }
}
