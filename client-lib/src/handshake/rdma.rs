//! What the two sides say of RDMA.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use super::{HandshakeError, MAX_NAME, TransportKind, sanitize, sanitize_message};

/// One end of an RDMA connection: what the other side has to know of it, to connect and to write to its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RdmaEnd {
    /// The device, for people.
    pub(crate) device: String,
    /// Number of the queue pair, 24 bits.
    pub(crate) qpn: u32,
    /// Sequence number of its first packet, 24 bits.
    pub(crate) psn: u32,
    /// What it sends from, and is reached by.
    pub(crate) gid: Ipv6Addr,
    /// The port's local identifier; 0 under RoCE.
    #[serde(default)]
    pub(crate) lid: u16,
    /// The largest packet that its port carries, in bytes of payload.
    pub(crate) mtu: u32,
    /// Where the memory begins that the other side writes to.
    pub(crate) address: u64,
    /// The memory's key.
    pub(crate) rkey: u32,
    /// How many places are in it: slots for frames, or entries for answers.
    pub(crate) places: u16,
    /// From one place to the next, in bytes.
    pub(crate) stride: u32,
    /// From the beginning of a place to what follows the header, in bytes.
    pub(crate) prefix: u32,
    /// Where payloads are to go, if not behind their headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payloads: Option<PayloadEnd>,
    /// Further queue pairs, for parts of large frames: as many as both sides have are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) further: Vec<PairEnd>,
}

/// A queue pair of the same port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PairEnd {
    /// Its number, 24 bits.
    pub(crate) qpn: u32,
    /// Sequence number of its first packet, 24 bits.
    pub(crate) psn: u32,
}

/// Memory for the payloads alone, a place for each slot: a GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PayloadEnd {
    /// Where it begins.
    pub(crate) address: u64,
    /// Its key.
    pub(crate) rkey: u32,
    /// From one place to the next, in bytes.
    pub(crate) stride: u32,
}

/// What the side that connects says last, if it was offered RDMA: whether it works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chosen {
    pub(crate) transport: TransportKind,
    /// Why it is not RDMA after all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl RdmaEnd {
    /// Checks what does not depend on who says it.
    pub(super) fn check(&mut self) -> Result<(), HandshakeError> {
        self.device = sanitize(std::mem::take(&mut self.device), MAX_NAME);
        let first = PairEnd { qpn: self.qpn, psn: self.psn };
        if [first].iter().chain(&self.further).any(|pair| (pair.qpn | pair.psn) >> 24 != 0) {
            return Err(HandshakeError::Value("a queue pair or a sequence number of more than 24 bits"));
        }
        if !(self.mtu.is_power_of_two() && (256..=4096).contains(&self.mtu)) {
            return Err(HandshakeError::Value("an MTU of RDMA that there is not"));
        }
        let cannot_be = |address: u64, stride: u32| {
            let length = u64::from(self.places) * u64::from(stride);
            length == 0 || address.checked_add(length).is_none()
        };
        let payloads = self.payloads.is_some_and(|payloads| cannot_be(payloads.address, payloads.stride));
        if cannot_be(self.address, self.stride) || self.prefix > self.stride || payloads {
            return Err(HandshakeError::Value("memory for RDMA that cannot be"));
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
    fn memory_that_cannot_be_is_refused() {
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

    /// Peers of before know of no further pairs, and name none.
    #[test]
    fn further_pairs_are_not_required() {
        let mut json = serde_json::to_value(end()).unwrap();
        json.as_object_mut().unwrap().remove("further");
        let old: RdmaEnd = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(old, RdmaEnd { further: Vec::new(), ..end() });
        assert_eq!(serde_json::to_value(old).unwrap(), json);
    }

    #[test]
    fn what_is_chosen_was_offered() {
        assert!(Chosen::decode(br#"{"transport": "pigeon"}"#).is_err());
        let chosen = Chosen::decode(br#"{"transport": "tcp", "reason": "a\nb"}"#).unwrap();
        assert_eq!(chosen.reason.as_deref(), Some("a\u{fffd}b"));
    }
}
