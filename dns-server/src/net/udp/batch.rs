//! Receiving datagrams in batches by `recvmmsg`, which the standard library does not offer.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, SystemTime};
use std::{ptr, slice};

use libc::c_int;

use super::BATCH;
use super::control::ControlMessages;
use super::gso::ReplyKey;
use crate::limits::udp::DATAGRAM;
use crate::net::socket::set_option;

/// Whether a receiving call waits for a datagram.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    /// Waits for the first datagram, and takes all others that have already arrived.
    ForOne,
    /// Takes only datagrams that have already arrived.
    Never,
}

/// Sets the options that decide from which address and by which path replies are sent.
pub(super) fn configure(socket: &UdpSocket) -> io::Result<()> {
    let local = socket.local_addr()?;
    // Replies are small. Where one exceeds the MTU, fragments are better than a loss. OMIT also
    // ignores forged ICMP messages that would make the path look narrower.
    let _ = set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_OMIT);
    if local.is_ipv6() {
        let _ = set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_OMIT);
    }
    match local.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => set_option(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)
        }
        _ => Ok(()),
    }
}

/// Asks the kernel to deliver the arrival time of each datagram, or to stop doing so.
pub(super) fn set_timestamps(socket: &UdpSocket, are_wanted: bool) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, are_wanted.into())
}

/// Buffer for one received datagram with its sender, and the place of its reply.
pub(super) struct Slot {
    packet: [u8; DATAGRAM],
    packet_len: usize,
    pub(super) peer: libc::sockaddr_storage,
    pub(super) peer_len: libc::socklen_t,
    pub(super) control: ControlMessages,
    /// The reply's range in the buffer of replies; empty if there is none.
    pub(super) reply: Range<usize>,
}

impl Default for Slot {
    fn default() -> Self {
        // SAFETY: a plain C structure for which all zeros are a valid value.
        let peer = unsafe { mem::zeroed() };
        let packet = [0; DATAGRAM];
        Self { packet, packet_len: 0, peer, peer_len: 0, control: ControlMessages::default(), reply: 0..0 }
    }
}

impl Slot {
    /// Returns the received datagram's data.
    pub(super) fn packet(&self) -> &[u8] {
        &self.packet[..self.packet_len]
    }

    /// Returns how long the datagram has waited in the socket, if its arrival time is known.
    pub(super) fn waited(&self, now: SystemTime) -> Option<Duration> {
        // `duration_since` fails if the clock was set back; then the datagram counts as just
        // arrived.
        self.control.arrived().map(|arrived| now.duration_since(arrived).unwrap_or_default())
    }

    /// Returns the key by which replies are grouped into messages; `None` if the slot has no reply.
    pub(super) fn key(&self) -> Option<ReplyKey> {
        let size = u16::try_from(self.reply.len()).unwrap_or(u16::MAX);
        let (host, port) = match self.peer()? {
            SocketAddr::V4(peer) => (peer.ip().to_bits(), peer.port()),
            SocketAddr::V6(peer) => (peer.ip().to_bits() as u32, peer.port()),
        };
        (size > 0).then_some(ReplyKey { host, port, size })
    }

    /// Tells whether both replies go to the same peer, from the same source address and interface.
    pub(super) fn shares_route(&self, other: &Self) -> bool {
        self.peer_bytes() == other.peer_bytes() && self.control.shares_route(&other.control)
    }

    /// Returns the sender's socket address as the kernel wrote it, for comparison.
    fn peer_bytes(&self) -> &[u8] {
        let length = (self.peer_len as usize).min(size_of_val(&self.peer));
        // SAFETY: `length` bytes lie in `self.peer`, which is borrowed with `self`. All of them are
        // initialized: the storage began as zeros.
        unsafe { slice::from_raw_parts(ptr::from_ref(&self.peer).cast(), length) }
    }

    /// Returns the address and port that the datagram came from, or `None` for an unknown family.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        let peer = ptr::from_ref(&self.peer);
        match c_int::from(self.peer.ss_family) {
            libc::AF_INET => {
                // SAFETY: this family's address is a `sockaddr_in`. The storage is large enough and
                // aligned for all families, and lives as long as `self`.
                let peer = unsafe { &*peer.cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(peer.sin_addr.s_addr));
                Some(SocketAddr::from((ip, u16::from_be(peer.sin_port))))
            }
            libc::AF_INET6 => {
                // SAFETY: as above, with `sockaddr_in6`.
                let peer = unsafe { &*peer.cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(peer.sin6_addr.s6_addr);
                Some(SocketAddr::from((ip, u16::from_be(peer.sin6_port))))
            }
            _ => None,
        }
    }
}

/// Empty iovec, for unused entries of a batch.
pub(super) const NO_IOVEC: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

// SAFETY: a plain C structure of numbers and pointers for which all zeros are a valid value.
pub(super) const NO_HEADER: libc::mmsghdr = unsafe { mem::zeroed() };

/// Receives datagrams into `slots` from the front, and returns their number. `is_stamped` tells
/// whether arrival times were asked for.
pub(super) fn receive(
    socket: &UdpSocket,
    slots: &mut [Slot],
    wait: Wait,
    is_stamped: bool,
) -> io::Result<usize> {
    let flags = match wait {
        Wait::ForOne => libc::MSG_WAITFORONE,
        Wait::Never => libc::MSG_DONTWAIT,
    };
    let mut iovecs = [NO_IOVEC; BATCH];
    let mut headers = [NO_HEADER; BATCH];
    let count = slots.len().min(BATCH);
    for (position, slot) in slots.iter_mut().take(count).enumerate() {
        iovecs[position] = libc::iovec { iov_base: (&raw mut slot.packet).cast(), iov_len: DATAGRAM };
        let header = &mut headers[position].msg_hdr;
        header.msg_name = (&raw mut slot.peer).cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as _;
        let (buffer, length) = slot.control.receive_buffer(is_stamped);
        header.msg_control = buffer.cast();
        header.msg_controllen = length as _;
        header.msg_iov = &raw mut iovecs[position];
        header.msg_iovlen = 1;
    }
    // SAFETY: each of the first `count` headers points to name, control and data buffers of the
    // stated lengths, in a slot of its own that stays borrowed until the function returns, and to
    // iovecs that live as long. The timeout may be null.
    let result = unsafe {
        libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as _, flags as _, ptr::null_mut())
    };
    let received = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    for (slot, header) in slots.iter_mut().zip(&headers).take(received) {
        slot.packet_len = (header.msg_len as usize).min(DATAGRAM);
        slot.peer_len = header.msg_hdr.msg_namelen;
        slot.control.was_received(header.msg_hdr.msg_controllen as _, is_stamped);
    }
    Ok(received)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Receives exactly `count` datagrams.
    pub(in crate::net::udp) fn receive_exactly(socket: &UdpSocket, slots: &mut [Slot], count: usize) {
        configure(socket).unwrap();
        let mut received = 0;
        while received < count {
            received += receive(socket, &mut slots[received..count], Wait::ForOne, false).unwrap();
        }
    }

    pub(in crate::net::udp) fn slots() -> Vec<Slot> {
        (0..BATCH).map(|_| Slot::default()).collect()
    }

    #[test]
    fn a_datagram_longer_than_the_buffer_is_cut_off() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(&[7; DATAGRAM + 100], server.local_addr().unwrap()).unwrap();
        client.send_to(&[8; 3], server.local_addr().unwrap()).unwrap();
        let mut slots = slots();
        receive_exactly(&server, &mut slots, 2);
        assert_eq!(slots[0].packet(), &[7; DATAGRAM][..]);
        assert_eq!(slots[1].packet(), &[8; 3][..]);
    }

    #[test]
    fn peers_with_the_same_key_differ_by_address_or_scope() {
        let slot = |address: &str| {
            let peer_len = size_of::<libc::sockaddr_in6>() as _;
            let mut slot = Slot { peer_len, reply: 0..10, ..Slot::default() };
            // SAFETY: the storage is large enough and aligned for all families, and is all zeros.
            let peer = unsafe { &mut *(&raw mut slot.peer).cast::<libc::sockaddr_in6>() };
            (peer.sin6_family, peer.sin6_port) = (libc::AF_INET6 as _, 53);
            peer.sin6_addr.s6_addr = address.parse::<Ipv6Addr>().unwrap().octets();
            slot
        };
        let (one, same, other) = (slot("2001:db8::1:7"), slot("2001:db8::1:7"), slot("2001:db8:1::1:7"));
        assert!(one.key() == same.key() && one.shares_route(&same));
        assert!(one.key() == other.key() && !one.shares_route(&other));
        let mut elsewhere = slot("2001:db8::1:7");
        // SAFETY: as above.
        unsafe { (*(&raw mut elsewhere.peer).cast::<libc::sockaddr_in6>()).sin6_scope_id = 3 };
        assert!(!one.shares_route(&elsewhere));
    }

    #[test]
    fn arrival_times_tell_how_long_a_datagram_has_waited() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_timestamps(&server, true).unwrap();
        // The kernel starts to take arrival times a little after the first socket asks for them.
        let mut slots = slots();
        let waited = (0..100).find_map(|_| {
            let sent = SystemTime::now();
            client.send_to(b"x", server.local_addr().unwrap()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            receive(&server, &mut slots, Wait::ForOne, true).unwrap();
            let now = SystemTime::now();
            let waited = slots[0].waited(now)?;
            assert!(waited <= now.duration_since(sent).unwrap());
            (waited >= Duration::from_millis(20)).then_some(waited)
        });
        assert!(waited.is_some());
        // The slot still holds an old arrival time, which must not be used.
        set_timestamps(&server, false).unwrap();
        client.send_to(b"x", server.local_addr().unwrap()).unwrap();
        receive(&server, &mut slots, Wait::ForOne, true).unwrap();
        assert_eq!(slots[0].waited(SystemTime::now()), None);
        assert!(slots[0].control.for_reply().is_none());
    }
}
