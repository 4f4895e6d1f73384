//! Control messages: what the kernel says of a datagram beside what is in it, and what it is told of the reply.
//!
//! **The reply's source** is the address that the query was sent to. A socket bound to a wildcard would
//! leave the choice to the routing table, and a pod with several networks would answer from the wrong
//! one. So such a socket asks for packet info and hands it back with the reply, without the interface:
//! where the way leads is for routing to say, except for link-local addresses, which mean nothing without
//! one. An IPv6 socket gets IPv4 clients as mapped addresses, in packet info too.
//!
//! **Arrival times** are asked for only under load; `udp/overload.rs` says why. The kernel writes them before
//! packet info, which then follows right behind.
//!
//! **The size of segments** goes with replies that are sent as one piece, which the kernel cuts up (UDP GSO). It stands
//! where the arrival time stood, likewise right before packet info.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::time::{Duration, SystemTime};

use libc::c_int;

/// The control messages of a datagram, then of its reply.
pub(super) struct Control {
    buffer: Buffer,
    /// When the datagram arrived, if that was asked for.
    arrived: Option<SystemTime>,
    /// The octets of `buffer.packet_info` that are valid; none if the socket does not ask for packet info.
    packet_info_len: usize,
}

impl Default for Control {
    fn default() -> Self {
        // SAFETY: plain C structures of numbers, for which zeros are valid.
        let buffer = unsafe { mem::zeroed() };
        Self { buffer, arrived: None, packet_info_len: 0 }
    }
}

impl Control {
    /// Where the system may write, and how many octets. `is_stamped` says whether an arrival time comes first.
    pub(super) fn receive_buffer(&mut self, is_stamped: bool) -> (*mut u8, usize) {
        if is_stamped {
            (ptr::from_mut(&mut self.buffer).cast(), size_of::<Buffer>())
        } else {
            (ptr::from_mut(&mut self.buffer.packet_info).cast(), size_of::<PacketInfo>())
        }
    }

    /// Takes what the system has written there, so many octets, and turns it into what is sent with the reply.
    pub(super) fn was_received(&mut self, length: usize, is_stamped: bool) {
        (self.arrived, self.packet_info_len) = (None, length);
        if is_stamped {
            let arrival_len = mem::offset_of!(Buffer, packet_info);
            if length >= arrival_len {
                // SAFETY: the system has written all of it, and all bit patterns of a time and its header are valid.
                self.arrived = unsafe { self.buffer.leading.arrival }.time();
            }
            // Without a time first, packet info is not where it is looked for.
            self.packet_info_len = if self.arrived.is_some() { length - arrival_len } else { 0 };
        }
        if !self.buffer.packet_info.prepare_for_reply(self.packet_info_len) {
            self.packet_info_len = 0;
        }
    }

    pub(super) fn arrived(&self) -> Option<SystemTime> {
        self.arrived
    }

    /// What to send with the reply, and its octets.
    pub(super) fn for_reply(&mut self) -> Option<(*mut u8, usize)> {
        (self.packet_info_len > 0)
            .then(|| (ptr::from_mut(&mut self.buffer.packet_info).cast(), self.packet_info_len))
    }

    /// What to send with several replies, all of `size` octets, which go the way of this one as one piece.
    pub(super) fn for_segments(&mut self, size: u16) -> (*mut u8, usize) {
        self.buffer.leading.segment_size = SegmentSize::of(size);
        let begin = mem::offset_of!(Buffer, packet_info) - SEGMENT_SIZE_LEN;
        // A pointer into the whole buffer: what it leads to goes beyond one field.
        let buffer = ptr::from_mut(&mut self.buffer).cast::<u8>();
        (buffer.wrapping_add(begin), SEGMENT_SIZE_LEN + self.packet_info_len)
    }

    /// Whether its reply goes the way of the other's.
    pub(super) fn shares_route(&self, other: &Self) -> bool {
        self.packet_info_len == other.packet_info_len
            && (self.packet_info_len == 0
                || self.buffer.packet_info.route() == other.buffer.packet_info.route())
    }
}

/// Buffer for control messages, in the order in which the kernel writes them, or reads.
#[repr(C)]
struct Buffer {
    leading: Leading,
    packet_info: PacketInfo,
}

/// What comes before packet info: on receiving one, on sending the other.
#[repr(C)]
union Leading {
    arrival: ArrivalTime,
    segment_size: SegmentSize,
}

/// A control message with a time; its length is that of the next one's offset.
#[repr(C)]
#[derive(Clone, Copy)]
struct ArrivalTime {
    head: libc::cmsghdr,
    time: libc::timespec,
}

impl ArrivalTime {
    fn time(&self) -> Option<SystemTime> {
        if self.head.cmsg_level != libc::SOL_SOCKET || self.head.cmsg_type != libc::SCM_TIMESTAMPNS {
            return None;
        }
        let seconds = Duration::from_secs(u64::try_from(self.time.tv_sec).ok()?);
        SystemTime::UNIX_EPOCH
            .checked_add(seconds)?
            .checked_add(Duration::from_nanos(u64::try_from(self.time.tv_nsec).ok()?))
    }
}

/// The octets of the message in [`SegmentSize`], up to where the next one begins.
// SAFETY: it only reckons.
const SEGMENT_SIZE_LEN: usize = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;

/// A control message with the size of segments, at the end of the buffer of a [`ArrivalTime`].
#[repr(C)]
#[derive(Clone, Copy)]
struct SegmentSize {
    gap: [u8; size_of::<ArrivalTime>() - SEGMENT_SIZE_LEN],
    head: libc::cmsghdr,
    size: u16,
    /// What would be padding otherwise, which has no value.
    rest: [u8; SEGMENT_SIZE_LEN - size_of::<libc::cmsghdr>() - size_of::<u16>()],
}

impl SegmentSize {
    fn of(size: u16) -> Self {
        // SAFETY: a plain C structure of numbers, for which zeros are valid.
        let mut head: libc::cmsghdr = unsafe { mem::zeroed() };
        // SAFETY: it only reckons.
        head.cmsg_len = unsafe { libc::CMSG_LEN(size_of_val(&size) as u32) } as _;
        (head.cmsg_level, head.cmsg_type) = (libc::SOL_UDP, libc::UDP_SEGMENT);
        Self { gap: [0; _], head, size, rest: [0; _] }
    }
}

/// Buffer for one control message with packet info, of either family. A `cmsghdr` is followed by its data
/// at the next aligned offset (`CMSG_DATA`), which is where C puts the next field.
#[repr(C)]
union PacketInfo {
    head: libc::cmsghdr,
    v4: PacketInfo4,
    v6: PacketInfo6,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PacketInfo4 {
    head: libc::cmsghdr,
    info: libc::in_pktinfo,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PacketInfo6 {
    head: libc::cmsghdr,
    info: libc::in6_pktinfo,
}

impl PacketInfo {
    /// Turns what was received, so many octets, into what goes with the reply; says whether it is packet info.
    fn prepare_for_reply(&mut self, length: usize) -> bool {
        if length >= size_of::<PacketInfo4>() && self.is(libc::IPPROTO_IP, libc::IP_PKTINFO) {
            // Level and type say which one it is, and its whole length was received.
            self.v4.info.ipi_ifindex = 0;
            true
        } else if length >= size_of::<PacketInfo6>() && self.is(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) {
            // SAFETY: level and type say which one it is, and its whole length was received.
            let info = unsafe { &mut self.v6.info };
            if !Ipv6Addr::from(info.ipi6_addr.s6_addr).is_unicast_link_local() {
                info.ipi6_ifindex = 0;
            }
            true
        } else {
            false
        }
    }

    /// What of it decides about a reply: its source, and the interface if one is demanded.
    fn route(&self) -> Option<(IpAddr, u32)> {
        if self.is(libc::IPPROTO_IP, libc::IP_PKTINFO) {
            // SAFETY: level and type say which one it is; all of its bit patterns are valid.
            let info = unsafe { self.v4.info };
            Some((
                Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr)).into(),
                info.ipi_ifindex.cast_unsigned(),
            ))
        } else if self.is(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) {
            // SAFETY: as above.
            let info = unsafe { self.v6.info };
            Some((Ipv6Addr::from(info.ipi6_addr.s6_addr).into(), info.ipi6_ifindex))
        } else {
            None
        }
    }

    fn is(&self, level: c_int, kind: c_int) -> bool {
        // SAFETY: all variants begin with the header, and all of its bit patterns are valid.
        let head = unsafe { self.head };
        head.cmsg_level == level && head.cmsg_type == kind
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::super::batch::{Slot, Wait, configure, receive, set_timestamps};
    use super::*;

    #[test]
    fn packet_info_goes_back_without_the_interface() {
        let server = UdpSocket::bind("[::]:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let mut slots = [Slot::default()];
        configure(&server).unwrap();
        for (asked, mapped) in [("127.0.0.2", "::ffff:127.0.0.2"), ("::1", "::1")] {
            let asked: IpAddr = asked.parse().unwrap();
            let client = UdpSocket::bind((asked, 0)).unwrap();
            for is_stamped in [false, true] {
                set_timestamps(&server, is_stamped).unwrap();
                client.send_to(b"x", (asked, port)).unwrap();
                assert_eq!(receive(&server, &mut slots, Wait::ForOne, is_stamped).unwrap(), 1);
                let control = &slots[0].control;
                assert!(control.buffer.packet_info.is(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO));
                // SAFETY: as the line above says.
                let info = unsafe { control.buffer.packet_info.v6.info };
                assert_eq!(Ipv6Addr::from(info.ipi6_addr.s6_addr).to_string(), mapped);
                assert_eq!(info.ipi6_ifindex, 0);
                assert_eq!(control.packet_info_len, size_of::<PacketInfo6>().next_multiple_of(8));
                assert_eq!(control.arrived.is_some(), is_stamped);
            }
        }
    }

    #[test]
    fn only_link_local_replies_keep_the_interface() {
        for (asked, interface) in [("fe80::1", 3), ("fd00::1", 0), ("::ffff:10.0.0.1", 0)] {
            let mut control = Control::default();
            let info = &mut control.buffer.packet_info;
            info.v6.head.cmsg_level = libc::IPPROTO_IPV6;
            info.v6.head.cmsg_type = libc::IPV6_PKTINFO;
            info.v6.info.ipi6_addr.s6_addr = asked.parse::<Ipv6Addr>().unwrap().octets();
            info.v6.info.ipi6_ifindex = 3;
            control.was_received(size_of::<PacketInfo6>(), false);
            // SAFETY: it was written above.
            let info = unsafe { control.buffer.packet_info.v6.info };
            assert_eq!(info.ipi6_ifindex, interface, "{asked}");
            assert_eq!(control.packet_info_len, size_of::<PacketInfo6>());
        }
    }

    #[test]
    fn what_is_no_packet_info_is_not_sent_back() {
        let mut control = Control::default();
        control.was_received(size_of::<PacketInfo>(), false);
        assert!(control.for_reply().is_none());
    }
}
