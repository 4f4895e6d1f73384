//! Datagrams in batches: what the standard library has no call for.
//!
//! **Failures to send** concern one datagram, not the batch: it is skipped and the rest is sent. Only when
//! the socket has had no room for its whole time limit is the rest given up, like any lost datagram.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::ptr;
use std::time::{Duration, SystemTime};

use libc::c_int;

use super::control::Control;
use crate::socket::set_option;

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

/// Asks for the time at which each datagram has arrived, or not any more.
pub(super) fn set_timestamps(socket: &UdpSocket, are_wanted: bool) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, are_wanted.into())
}

/// A datagram that was received, and where its reply lies.
pub(super) struct Slot {
    packet: [u8; DATAGRAM],
    packet_len: usize,
    peer: libc::sockaddr_storage,
    peer_len: libc::socklen_t,
    pub(super) control: Control,
    /// The reply within the buffer of replies; empty if there is none.
    pub(super) reply: Range<usize>,
}

impl Default for Slot {
    fn default() -> Self {
        // SAFETY: a plain C structure, for which zeros are valid.
        let peer = unsafe { mem::zeroed() };
        let packet = [0; DATAGRAM];
        Self { packet, packet_len: 0, peer, peer_len: 0, control: Control::default(), reply: 0..0 }
    }
}

impl Slot {
    /// What came.
    pub(super) fn packet(&self) -> &[u8] {
        &self.packet[..self.packet_len]
    }

    /// How long the datagram has waited, if that is known.
    pub(super) fn waited(&self, now: SystemTime) -> Option<Duration> {
        // A clock that was set back has let nothing wait.
        self.control.arrived().map(|arrived| now.duration_since(arrived).unwrap_or_default())
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
}

/// For the entries of a batch that are not used.
const NO_IOVEC: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

// SAFETY: a plain C structure of numbers and pointers, for which zeros are valid.
const NO_HEADER: libc::mmsghdr = unsafe { mem::zeroed() };

/// Fills slots from the front; gives their number. `is_stamped` says whether arrival times were asked for.
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
        let (room, length) = slot.control.room(is_stamped);
        header.msg_control = room.cast();
        header.msg_controllen = length as _;
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
        slot.control.was_received(header.msg_hdr.msg_controllen as _, is_stamped);
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
        if let Some((info, length)) = slot.control.of_reply() {
            header.msg_control = info.cast();
            header.msg_controllen = length as _;
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
            received += receive(socket, &mut slots[received..count], Wait::ForOne, false).unwrap();
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
    fn it_is_known_how_long_a_datagram_has_waited() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_timestamps(&server, true).unwrap();
        // The system begins to take times a little after the first socket asks for them.
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
        // Not any more, though there is an old time in the slot.
        set_timestamps(&server, false).unwrap();
        client.send_to(b"x", server.local_addr().unwrap()).unwrap();
        receive(&server, &mut slots, Wait::ForOne, true).unwrap();
        assert_eq!(slots[0].waited(SystemTime::now()), None);
        assert!(slots[0].control.of_reply().is_none());
    }
}
