//! Datagrams in batches: what the standard library has no call for.
//!
//! **The reply's source** is the address that the query was sent to. A socket bound to a wildcard would
//! leave the choice to the routing table, and a pod with several networks would answer from the wrong
//! one. So such a socket asks for packet info and hands it back with the reply, without the interface:
//! where the way leads is for routing to say, except for link-local addresses, which mean nothing without
//! one. An IPv6 socket gets IPv4 clients as mapped addresses, in packet info too.
//!
//! **Failures to send** concern one datagram, not the batch: it is skipped and the rest is sent. Only when
//! the socket has had no room for its whole time limit is the rest given up, like any lost datagram.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::ptr;

use libc::c_int;

/// Datagrams per system call.
pub(super) const BATCH: usize = 32;

/// Room for a query. What is longer is cut off; no query needs as much.
const DATAGRAM: usize = 4096;

/// Whether to wait for a datagram.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    /// For the first, not for more.
    ForOne,
    /// Not at all.
    Never,
}

/// Sets what the reply's source and way depend on.
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<()> {
    let local = socket.local_addr()?;
    // Replies are small. Where one does not fit, it is better sent in fragments than lost, and nobody
    // can make the path look narrower by forged ICMP messages.
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

fn set_option(socket: &UdpSocket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let value = ptr::from_ref(&value).cast();
    // SAFETY: the descriptor is open as long as `socket` is, and `value` points to an int of the size that
    // is given, which outlives the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, size_of::<c_int>() as _) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A datagram that was received, and where its reply lies.
pub(super) struct Slot {
    packet: [u8; DATAGRAM],
    packet_len: usize,
    peer: libc::sockaddr_storage,
    peer_len: libc::socklen_t,
    asked: PacketInfo,
    /// The octets of `asked` that are valid; none if the socket does not ask for packet info.
    asked_len: usize,
    /// The reply within the buffer of replies; empty if there is none.
    pub(super) reply: Range<usize>,
}

impl Default for Slot {
    fn default() -> Self {
        // SAFETY: both are plain C structures, for which zeros are valid.
        let (peer, asked) = unsafe { (mem::zeroed(), mem::zeroed()) };
        let packet = [0; DATAGRAM];
        Self { packet, packet_len: 0, peer, peer_len: 0, asked, asked_len: 0, reply: 0..0 }
    }
}

impl Slot {
    /// What came.
    pub(super) fn packet(&self) -> &[u8] {
        &self.packet[..self.packet_len]
    }

    /// Where the datagram came from.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        let peer = ptr::from_ref(&self.peer);
        match c_int::from(self.peer.ss_family) {
            libc::AF_INET => {
                // SAFETY: of this family is a `sockaddr_in`; the storage is large enough and aligned for all
                // families, and lives as long as `self`.
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

    /// Turns the control message of the query into that of its reply.
    fn route_reply(&mut self) {
        if self.asked_len >= size_of::<PacketInfo4>() && self.asked.is(libc::IPPROTO_IP, libc::IP_PKTINFO) {
            // Level and type say which one it is, and its whole length was received.
            self.asked.v4.info.ipi_ifindex = 0;
        } else if self.asked_len >= size_of::<PacketInfo6>()
            && self.asked.is(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
        {
            // SAFETY: level and type say which one it is, and its whole length was received.
            let info = unsafe { &mut self.asked.v6.info };
            if !Ipv6Addr::from(info.ipi6_addr.s6_addr).is_unicast_link_local() {
                info.ipi6_ifindex = 0;
            }
        } else {
            self.asked_len = 0;
        }
    }
}

/// Room for one control message with packet info, of either family. A `cmsghdr` is followed by its data
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
    fn is(&self, level: c_int, kind: c_int) -> bool {
        // SAFETY: all variants begin with the header, and all of its bit patterns are valid.
        let head = unsafe { self.head };
        head.cmsg_level == level && head.cmsg_type == kind
    }
}

/// For the entries of a batch that are not used.
const NO_IOVEC: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

// SAFETY: a plain C structure of numbers and pointers, for which zeros are valid.
const NO_HEADER: libc::mmsghdr = unsafe { mem::zeroed() };

/// Fills slots from the front; gives their number.
pub(super) fn receive(socket: &UdpSocket, slots: &mut [Slot], wait: Wait) -> io::Result<usize> {
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
        header.msg_control = (&raw mut slot.asked).cast();
        header.msg_controllen = size_of::<PacketInfo>() as _;
        header.msg_iov = &raw mut iovecs[position];
        header.msg_iovlen = 1;
    }
    // SAFETY: the first `count` headers point to name, control and data buffers of the lengths that stand
    // there, each in a slot of its own that is borrowed until the function returns, and to iovecs that live as
    // long. A null timeout is allowed.
    let result = unsafe {
        libc::recvmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), count as _, flags as _, ptr::null_mut())
    };
    let received = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    for (slot, header) in slots.iter_mut().zip(&headers).take(received) {
        slot.packet_len = (header.msg_len as usize).min(DATAGRAM);
        slot.peer_len = header.msg_hdr.msg_namelen;
        slot.asked_len = header.msg_hdr.msg_controllen as _;
        slot.route_reply();
    }
    Ok(received)
}

/// Sends the replies of all slots that have one, out of `replies`. Gives how many were not sent, and why the
/// last of those was not.
pub(super) fn send(socket: &UdpSocket, slots: &mut [Slot], replies: &[u8]) -> Option<(usize, io::Error)> {
    let mut iovecs = [NO_IOVEC; BATCH];
    let mut headers = [NO_HEADER; BATCH];
    let mut count = 0;
    for slot in slots.iter_mut().take(BATCH).filter(|slot| !slot.reply.is_empty()) {
        let reply = &replies[slot.reply.clone()];
        iovecs[count] = libc::iovec { iov_base: reply.as_ptr().cast_mut().cast(), iov_len: reply.len() };
        let header = &mut headers[count].msg_hdr;
        header.msg_name = (&raw mut slot.peer).cast();
        header.msg_namelen = slot.peer_len;
        if slot.asked_len > 0 {
            header.msg_control = (&raw mut slot.asked).cast();
            header.msg_controllen = slot.asked_len as _;
        }
        header.msg_iov = &raw mut iovecs[count];
        header.msg_iovlen = 1;
        count += 1;
    }
    send_all(count, |sent| {
        let rest = &mut headers[sent..count];
        // SAFETY: each of these headers points to the name and control message of a slot and, by its iovec, to a
        // part of `replies`, with their lengths; all of these are borrowed until the function returns. The system
        // only reads what they point to, and writes lengths into the headers.
        let result = unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as _, 0) };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    })
}

/// Sends messages `0..count`, whatever becomes of single ones. `send` tries all from the given one on, and
/// says how many it sent, or what is wrong with the first of them. Gives how many were not sent, and why
/// the last of those was not.
fn send_all(count: usize, mut send: impl FnMut(usize) -> io::Result<usize>) -> Option<(usize, io::Error)> {
    let mut failed: Option<(usize, io::Error)> = None;
    let mut retried = None;
    let mut at = 0;
    while at < count {
        let error = match send(at) {
            Ok(sent) => {
                at += sent.max(1);
                continue;
            }
            Err(error) => error,
        };
        let lost = match error.raw_os_error() {
            Some(libc::EINTR) => continue,
            // An ICMP error from before, which is told of now and thereby gone: this message was not tried.
            Some(libc::ECONNREFUSED) if retried != Some(at) => {
                retried = Some(at);
                continue;
            }
            // No room after all that waiting; there is none for the others either.
            Some(libc::EAGAIN) => count - at,
            _ => 1,
        };
        at += lost;
        failed = Some((failed.map_or(0, |(earlier, _)| earlier) + lost, error));
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a `sendmmsg` would do for messages of which some have something wrong.
    fn send_with(errors: &[(usize, c_int)], count: usize) -> (Vec<usize>, usize) {
        let mut errors: Vec<(usize, c_int)> = errors.to_vec();
        let mut sent = Vec::new();
        let failed = send_all(count, |from| {
            let bad = errors.iter().position(|&(at, _)| at >= from);
            let end = bad.map_or(count, |bad| errors[bad].0);
            if end == from {
                let (_, code) = errors.remove(bad.unwrap());
                return Err(io::Error::from_raw_os_error(code));
            }
            sent.extend(from..end);
            Ok(end - from)
        });
        (sent, failed.map_or(0, |(lost, _)| lost))
    }

    #[test]
    fn one_bad_destination_does_not_drop_the_rest() {
        for code in [libc::EMSGSIZE, libc::EINVAL, libc::EPERM, libc::ENETUNREACH, libc::ENOBUFS] {
            assert_eq!(send_with(&[(1, code)], 4), (vec![0, 2, 3], 1));
            assert_eq!(send_with(&[(0, code), (3, code)], 4), (vec![1, 2], 2));
        }
    }

    #[test]
    fn what_was_not_the_messages_fault_is_tried_again() {
        assert_eq!(send_with(&[(1, libc::EINTR)], 3), (vec![0, 1, 2], 0));
        assert_eq!(send_with(&[(1, libc::ECONNREFUSED)], 3), (vec![0, 1, 2], 0));
        // Again at once: now it is.
        assert_eq!(send_with(&[(1, libc::ECONNREFUSED), (1, libc::ECONNREFUSED)], 3), (vec![0, 2], 1));
    }

    #[test]
    fn no_room_gives_up_the_rest() {
        assert_eq!(send_with(&[(2, libc::EAGAIN)], 5), (vec![0, 1], 3));
    }

    /// Receives exactly `count` datagrams.
    fn receive_exactly(socket: &UdpSocket, slots: &mut [Slot], count: usize) {
        prepare(socket).unwrap();
        let mut received = 0;
        while received < count {
            received += receive(socket, &mut slots[received..count], Wait::ForOne).unwrap();
        }
    }

    fn slots() -> Vec<Slot> {
        (0..BATCH).map(|_| Slot::default()).collect()
    }

    #[test]
    fn a_batch_is_received_and_sent() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let clients: Vec<UdpSocket> = (0..5).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        for (number, client) in clients.iter().enumerate() {
            client.send_to(&vec![number as u8; number + 1], server.local_addr().unwrap()).unwrap();
        }
        let mut slots = slots();
        receive_exactly(&server, &mut slots, clients.len());
        let mut replies = Vec::new();
        for (slot, client) in slots.iter_mut().zip(&clients) {
            assert_eq!(slot.peer(), Some(client.local_addr().unwrap()));
            let begin = replies.len();
            replies.extend_from_slice(slot.packet());
            slot.reply = begin..replies.len();
        }
        // Nobody can be sent to at port 0.
        // SAFETY: the peer is of the family of the sockets above.
        unsafe { (*(&raw mut slots[1].peer).cast::<libc::sockaddr_in>()).sin_port = 0 };
        // Nor 70000 octets at once.
        replies.resize(70_000, 0);
        slots[2].reply = 0..replies.len();
        // And this one is to get nothing.
        slots[3].reply = 0..0;
        let (lost, _) = send(&server, &mut slots[..clients.len()], &replies).unwrap();
        assert_eq!(lost, 2);
        for number in [0, 4] {
            let mut buffer = [0; 16];
            assert_eq!(clients[number].recv(&mut buffer).unwrap(), number + 1);
            assert_eq!(buffer[0], number as u8);
        }
        for number in [1, 2, 3] {
            clients[number].set_nonblocking(true).unwrap();
            assert!(clients[number].recv(&mut [0; 16]).is_err());
        }
    }

    #[test]
    fn a_datagram_that_is_too_long_is_cut_off() {
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
    fn packet_info_goes_back_without_the_interface() {
        let server = UdpSocket::bind("[::]:0").unwrap();
        let port = server.local_addr().unwrap().port();
        let mut slots = slots();
        prepare(&server).unwrap();
        for (asked, mapped) in [("127.0.0.2", "::ffff:127.0.0.2"), ("::1", "::1")] {
            let asked: IpAddr = asked.parse().unwrap();
            let client = UdpSocket::bind((asked, 0)).unwrap();
            client.send_to(b"x", (asked, port)).unwrap();
            receive_exactly(&server, &mut slots, 1);
            assert!(slots[0].asked.is(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO));
            // SAFETY: as the line above says.
            let info = unsafe { slots[0].asked.v6.info };
            assert_eq!(Ipv6Addr::from(info.ipi6_addr.s6_addr).to_string(), mapped);
            assert_eq!(info.ipi6_ifindex, 0);
        }
    }

    #[test]
    fn only_link_local_replies_keep_the_interface() {
        for (asked, interface) in [("fe80::1", 3), ("fd00::1", 0), ("::ffff:10.0.0.1", 0)] {
            let mut slot = Slot::default();
            slot.asked.v6.head.cmsg_level = libc::IPPROTO_IPV6;
            slot.asked.v6.head.cmsg_type = libc::IPV6_PKTINFO;
            slot.asked.v6.info.ipi6_addr.s6_addr = asked.parse::<Ipv6Addr>().unwrap().octets();
            slot.asked.v6.info.ipi6_ifindex = 3;
            slot.asked_len = size_of::<PacketInfo6>();
            slot.route_reply();
            // SAFETY: it was written above.
            let info = unsafe { slot.asked.v6.info };
            assert_eq!(info.ipi6_ifindex, interface, "{asked}");
            assert_eq!(slot.asked_len, size_of::<PacketInfo6>());
        }
    }

    #[test]
    fn what_is_no_packet_info_is_not_sent_back() {
        let mut slot = Slot { asked_len: size_of::<PacketInfo>(), ..Slot::default() };
        slot.route_reply();
        assert_eq!(slot.asked_len, 0);
    }
}
