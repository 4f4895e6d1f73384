//! The part of the handshake about RDMA.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use super::{HandshakeError, MAX_NAME, TransportKind, sanitize, sanitize_message};

/// One end of an RDMA connection, as the other end has to know it to connect and to write to its
/// memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RdmaEnd {
    /// Name of the device, for people.
    pub(crate) device: String,
    /// Number of the queue pair, 24 bits.
    pub(crate) qpn: u32,
    /// Sequence number of the queue pair's first packet, 24 bits.
    pub(crate) psn: u32,
    /// GID of the port.
    pub(crate) gid: Ipv6Addr,
    /// LID of the port; 0 for RoCE.
    #[serde(default)]
    pub(crate) lid: u16,
    /// Path MTU of the port: the largest payload of a packet, in bytes.
    pub(crate) mtu: u32,
    /// Start of the memory that the other end writes to.
    pub(crate) address: u64,
    /// Remote key of that memory.
    pub(crate) rkey: u32,
    /// Number of places in that memory: slots for frames, or ring entries for control messages.
    pub(crate) places: u16,
    /// Distance between two places, in bytes.
    pub(crate) stride: u32,
    /// Distance from the start of a place to the end of the header, in bytes.
    pub(crate) prefix: u32,
    /// Separate memory for payloads, if there is any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payloads: Option<PayloadEnd>,
    /// Further queue pairs, for stripes of large frames. The connection uses as many as both ends
    /// have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) further: Vec<PairEnd>,
}

/// Queue pair of the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PairEnd {
    /// Number of the queue pair, 24 bits.
    pub(crate) qpn: u32,
    /// Sequence number of the queue pair's first packet, 24 bits.
    pub(crate) psn: u32,
}

/// Memory for payloads only, in a GPU, with a place for each slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PayloadEnd {
    /// Start of the memory.
    pub(crate) address: u64,
    /// Remote key.
    pub(crate) rkey: u32,
    /// Distance between two places, in bytes.
    pub(crate) stride: u32,
}

/// Last message of the side that connects, if RDMA was accepted: the transport that it uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chosen {
    pub(crate) transport: TransportKind,
    /// Reason why the transport is not RDMA after all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl RdmaEnd {
    /// Checks the values that do not depend on the sender of the message.
    pub(super) fn check(&mut self) -> Result<(), HandshakeError> {
        self.device = sanitize(std::mem::take(&mut self.device), MAX_NAME);
        let first = PairEnd { qpn: self.qpn, psn: self.psn };
        if [first].iter().chain(&self.further).any(|pair| (pair.qpn | pair.psn) >> 24 != 0) {
            return Err(HandshakeError::Value(
                "a queue pair number or packet sequence number of more than 24 bits",
            ));
        }
        if !(self.mtu.is_power_of_two() && (256..=4096).contains(&self.mtu)) {
            return Err(HandshakeError::Value("an invalid RDMA MTU"));
        }
        let is_invalid = |address: u64, stride: u32| {
            let length = u64::from(self.places) * u64::from(stride);
            length == 0 || address.checked_add(length).is_none()
        };
        let payloads = self.payloads.is_some_and(|payloads| is_invalid(payloads.address, payloads.stride));
        if is_invalid(self.address, self.stride) || self.prefix > self.stride || payloads {
            return Err(HandshakeError::Value("an invalid range of RDMA memory"));
        }
        Ok(())
    }
}

impl Chosen {
    pub(crate) fn decode(json: &[u8]) -> Result<Self, HandshakeError> {
        let mut chosen: Self = serde_json::from_slice(json)?;
        if chosen.transport == TransportKind::Other {
            return Err(HandshakeError::Value("a transport that was not offered"));
        }
        if let Some(reason) = &mut chosen.reason {
            *reason = sanitize_message(std::mem::take(reason));
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> RdmaEnd {
        RdmaEnd {
            device: "mlx5_2".to_owned(),
            qpn: 17,
            psn: 1,
            gid: "::ffff:10.9.0.1".parse().unwrap(),
            lid: 0,
            mtu: 4096,
            address: 0x7fff_0000_0000,
            rkey: 5,
            places: 16,
            stride: 8192,
            prefix: 4416,
            payloads: Some(PayloadEnd { address: 0x7000_0000_0000, rkey: 6, stride: 1 << 20 }),
            further: vec![PairEnd { qpn: 18, psn: 2 }],
        }
    }

    #[test]
    fn an_end_with_an_invalid_value_is_refused() {
        assert!(end().check().is_ok());
        let payloads = |address, stride| Some(PayloadEnd { address, rkey: 6, stride });
        assert!(RdmaEnd { payloads: None, ..end() }.check().is_ok());
        assert!(RdmaEnd { payloads: payloads(8, 0), ..end() }.check().is_err());
        assert!(RdmaEnd { payloads: payloads(u64::MAX - 100, 64), ..end() }.check().is_err());
        let cases: [fn(&mut RdmaEnd); 8] = [
            |end| end.qpn = 1 << 24,
            |end| end.psn = u32::MAX,
            |end| end.further[0].qpn = 1 << 24,
            |end| end.mtu = 1500,
            |end| end.places = 0,
            |end| end.stride = 0,
            |end| end.prefix = 8193,
            |end| end.address = u64::MAX - 100,
        ];
        for change in cases {
            let mut changed = end();
            change(&mut changed);
            assert!(changed.check().is_err(), "{changed:?}");
        }
        let mut named = RdmaEnd { device: "a\nb".to_owned(), ..end() };
        named.check().unwrap();
        assert_eq!(named.device, "a\u{fffd}b");
    }

    /// Peers of an earlier version know no further pairs, and name none.
    #[test]
    fn an_end_without_further_pairs_is_accepted() {
        let mut json = serde_json::to_value(end()).unwrap();
        json.as_object_mut().unwrap().remove("further");
        let old: RdmaEnd = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(old, RdmaEnd { further: Vec::new(), ..end() });
        assert_eq!(serde_json::to_value(old).unwrap(), json);
    }

    #[test]
    fn a_choice_of_an_unknown_transport_is_refused() {
        assert!(Chosen::decode(br#"{"transport": "pigeon"}"#).is_err());
        let chosen = Chosen::decode(br#"{"transport": "tcp", "reason": "a\nb"}"#).unwrap();
        assert_eq!(chosen.reason.as_deref(), Some("a\u{fffd}b"));
    }
}
