//! Control messages: metadata that the kernel passes with a received datagram, and that the server
//! passes back with the reply.
//!
//! **The source address** of a reply must be the address that the query was sent to. A socket that
//! is bound to a wildcard would let the routing table choose, and a pod with several networks would
//! answer from the wrong address. Such a socket therefore asks for packet info and hands it back
//! with the reply. The interface is cleared first: routing chooses it, except for link-local
//! addresses, which need one. An IPv6 socket gets IPv4 clients as mapped addresses, in packet info
//! too.
//!
//! **Arrival times** are asked for only under load; `udp/overload.rs` explains why. The kernel
//! writes the arrival time first and packet info right behind it.
//!
//! **The segment size** goes with several replies that are sent as one message and cut up by the
//! kernel (UDP GSO). It takes the place of the arrival time, right before packet info.

use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::time::{Duration, SystemTime};

use libc::c_int;

/// Control messages that came with one received datagram, and those to send with its reply.
pub(super) struct ControlMessages {
    buffer: Buffer,
    /// When the datagram arrived; `None` unless the socket asked for timestamps.
    arrived: Option<SystemTime>,
    /// Number of valid bytes in `buffer.packet_info`; 0 if the socket does not ask for packet info.
    packet_info_len: usize,
}

impl Default for ControlMessages {
    fn default() -> Self {
        // SAFETY: plain C structures of numbers for which all zeros are a valid value.
        let buffer = unsafe { mem::zeroed() };
        Self { buffer, arrived: None, packet_info_len: 0 }
    }
}

impl ControlMessages {
    /// Returns where the kernel may write control messages, and how many bytes. `is_stamped` tells
    /// whether an arrival time comes first.
    pub(super) fn receive_buffer(&mut self, is_stamped: bool) -> (*mut u8, usize) {
        if is_stamped {
            (ptr::from_mut(&mut self.buffer).cast(), size_of::<Buffer>())
        } else {
            (ptr::from_mut(&mut self.buffer.packet_info).cast(), size_of::<PacketInfo>())
        }
    }

    /// Reads the `length` bytes that the kernel wrote, and prepares packet info for the reply.
    pub(super) fn was_received(&mut self, length: usize, is_stamped: bool) {
        (self.arrived, self.packet_info_len) = (None, length);
        if is_stamped {
            let arrival_len = mem::offset_of!(Buffer, packet_info);
            if length >= arrival_len {
                // SAFETY: the kernel has written the whole header and time, for which all bit
                // patterns are valid.
                self.arrived = unsafe { self.buffer.leading.arrival }.time();
            }
            // Without an arrival time, packet info is not at its usual offset.
            self.packet_info_len = if self.arrived.is_some() { length - arrival_len } else { 0 };
        }
        if !self.buffer.packet_info.prepare_for_reply(self.packet_info_len) {
            self.packet_info_len = 0;
        }
    }

    pub(super) fn arrived(&self) -> Option<SystemTime> {
        self.arrived
    }

    /// Returns the control message for a single reply, and its length; `None` if the reply needs
    /// none.
    pub(super) fn for_reply(&mut self) -> Option<(*mut u8, usize)> {
        (self.packet_info_len > 0)
            .then(|| (ptr::from_mut(&mut self.buffer.packet_info).cast(), self.packet_info_len))
    }

    /// Returns the control messages for several replies of `size` bytes each that are sent as one
    /// message, and their length.
    pub(super) fn for_segments(&mut self, size: u16) -> (*mut u8, usize) {
        self.buffer.leading.segment_size = SegmentSize::of(size);
        let begin = mem::offset_of!(Buffer, packet_info) - SEGMENT_SIZE_LEN;
        // The pointer is derived from the whole buffer, since the kernel reads beyond one field.
        let buffer = ptr::from_mut(&mut self.buffer).cast::<u8>();
        (buffer.wrapping_add(begin), SEGMENT_SIZE_LEN + self.packet_info_len)
    }

    /// Tells whether this reply and `other` have the same source address and outgoing interface.
    pub(super) fn shares_route(&self, other: &Self) -> bool {
        self.packet_info_len == other.packet_info_len
            && (self.packet_info_len == 0
                || self.buffer.packet_info.route() == other.buffer.packet_info.route())
    }
}

/// Control messages in the order in which the kernel writes and reads them.
#[repr(C)]
struct Buffer {
    leading: Leading,
    packet_info: PacketInfo,
}

/// The control message before packet info: an arrival time when receiving, a segment size when
/// sending.
#[repr(C)]
union Leading {
    arrival: ArrivalTime,
    segment_size: SegmentSize,
}

/// Control message with an arrival time. Its size is the offset at which the next message begins.
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

/// Length of the message in [`SegmentSize`], up to the beginning of the next one.
// SAFETY: `CMSG_SPACE` only computes a number.
const SEGMENT_SIZE_LEN: usize = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;

/// Control message with a segment size, placed at the end of the space of an [`ArrivalTime`].
#[repr(C)]
#[derive(Clone, Copy)]
struct SegmentSize {
    gap: [u8; size_of::<ArrivalTime>() - SEGMENT_SIZE_LEN],
    head: libc::cmsghdr,
    size: u16,
    /// Named padding, so that every byte is initialized.
    rest: [u8; SEGMENT_SIZE_LEN - size_of::<libc::cmsghdr>() - size_of::<u16>()],
}

impl SegmentSize {
    fn of(size: u16) -> Self {
        // SAFETY: a plain C structure of numbers for which all zeros are a valid value.
        let mut head: libc::cmsghdr = unsafe { mem::zeroed() };
        // SAFETY: `CMSG_LEN` only computes a number.
        head.cmsg_len = unsafe { libc::CMSG_LEN(size_of_val(&size) as u32) } as _;
        (head.cmsg_level, head.cmsg_type) = (libc::SOL_UDP, libc::UDP_SEGMENT);
        Self { gap: [0; _], head, size, rest: [0; _] }
    }
}

/// Space for one control message with packet info of either family. The data follow the `cmsghdr`
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
    /// Turns received packet info of `length` bytes into that of the reply. Returns whether it was
    /// packet info.
    fn prepare_for_reply(&mut self, length: usize) -> bool {
        if length >= size_of::<PacketInfo4>() && self.is(libc::IPPROTO_IP, libc::IP_PKTINFO) {
            // Level and type identify the variant, and the whole message was received.
            self.v4.info.ipi_ifindex = 0;
            true
        } else if length >= size_of::<PacketInfo6>() && self.is(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) {
            // SAFETY: level and type identify the variant, and the whole message was received.
            let info = unsafe { &mut self.v6.info };
            if !Ipv6Addr::from(info.ipi6_addr.s6_addr).is_unicast_link_local() {
                info.ipi6_ifindex = 0;
            }
            true
        } else {
            false
        }
    }

    /// Returns the source address of the reply, and the index of its interface, 0 if routing
    /// decides.
    fn route(&self) -> Option<(IpAddr, u32)> {
        if self.is(libc::IPPROTO_IP, libc::IP_PKTINFO) {
            // SAFETY: level and type identify the variant; all bit patterns are valid.
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
        // SAFETY: all variants begin with the header, for which all bit patterns are valid.
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
                // SAFETY: the assertion above has checked the variant.
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
            let mut control = ControlMessages::default();
            let info = &mut control.buffer.packet_info;
            info.v6.head.cmsg_level = libc::IPPROTO_IPV6;
            info.v6.head.cmsg_type = libc::IPV6_PKTINFO;
            info.v6.info.ipi6_addr.s6_addr = asked.parse::<Ipv6Addr>().unwrap().octets();
            info.v6.info.ipi6_ifindex = 3;
            control.was_received(size_of::<PacketInfo6>(), false);
            // SAFETY: this variant was written above.
            let info = unsafe { control.buffer.packet_info.v6.info };
            assert_eq!(info.ipi6_ifindex, interface, "{asked}");
            assert_eq!(control.packet_info_len, size_of::<PacketInfo6>());
        }
    }

    #[test]
    fn a_control_message_that_is_no_packet_info_is_not_sent_back() {
        let mut control = ControlMessages::default();
        control.was_received(size_of::<PacketInfo>(), false);
        assert!(control.for_reply().is_none());
    }
}
