//! Datagrams in batches: what the standard library has no call for.
//!
//! **Failures to send** concern one datagram, not the batch: it is skipped and the rest is sent. Only when
//! the socket has had no room for its whole time limit is the rest given up, like any lost datagram. What is refused as
//! a piece of several (`udp/pieces.rs`) is sent reply by reply: its way may be narrower than such pieces may be, or
//! lead through a tunnel that takes none.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, SystemTime};
use std::{ptr, slice};

use libc::c_int;

use super::control::Control;
use super::pieces::{Key, Pieces};
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

/// Whether the system cuts up pieces. Where it does not know how to, it would send them as they are.
pub(super) fn takes_pieces(socket: &UdpSocket) -> bool {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
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

    /// What mostly tells its reply from others; none if there is no reply.
    fn key(&self) -> Option<Key> {
        let port = self.peer().map_or(0, |peer| peer.port());
        let size = u16::try_from(self.reply.len()).unwrap_or(u16::MAX);
        (size > 0).then_some(Key { port, size })
    }

    /// Whether its reply goes to the same peer by the same way.
    fn goes_like(&self, other: &Self) -> bool {
        self.peer_octets() == other.peer_octets() && self.control.goes_like(&other.control)
    }

    /// The peer as the system has written it.
    fn peer_octets(&self) -> &[u8] {
        let length = (self.peer_len as usize).min(size_of_val(&self.peer));
        // SAFETY: so many octets lie there, borrowed with `self`, and all of them have been written: zeros at first.
        unsafe { slice::from_raw_parts(ptr::from_ref(&self.peer).cast(), length) }
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

/// Sends the replies of all slots that have one, out of `replies`, as pieces if the socket `takes_pieces`. Gives how
/// many were not sent, and why the last of those was not.
pub(super) fn send(
    socket: &UdpSocket,
    slots: &mut [Slot],
    replies: &[u8],
    takes_pieces: bool,
) -> Option<(usize, io::Error)> {
    let alike = |first: usize, place: usize| takes_pieces && slots[first].goes_like(&slots[place]);
    let pieces = Pieces::of(slots.iter().map(Slot::key), alike);
    let (failed, error) = send_pieces(socket, slots, replies, &pieces)?;
    let all = failed.iter().map(|&number| pieces.piece(number).len()).sum::<usize>();
    if error.raw_os_error() == Some(libc::EAGAIN) {
        return Some((all, error));
    }
    let apart = pieces.apart(&failed);
    let lost = all - apart.count();
    match send_pieces(socket, slots, replies, &apart) {
        Some((failed, error)) => Some((lost + failed.len(), error)),
        None => (lost > 0).then_some((lost, error)),
    }
}

/// Sends pieces. Gives those that were not sent, and why the last of them was not.
fn send_pieces(
    socket: &UdpSocket,
    slots: &mut [Slot],
    replies: &[u8],
    pieces: &Pieces,
) -> Option<(Vec<usize>, io::Error)> {
    let mut iovecs = [NO_IOVEC; BATCH];
    let mut headers = [NO_HEADER; BATCH];
    let mut rest = &mut iovecs[..];
    for (number, header) in headers.iter_mut().take(pieces.count()).enumerate() {
        let places = pieces.piece(number);
        let own;
        (own, rest) = rest.split_at_mut(places.len());
        for (iovec, &place) in own.iter_mut().zip(places) {
            let reply = &replies[slots[usize::from(place)].reply.clone()];
            *iovec = libc::iovec { iov_base: reply.as_ptr().cast_mut().cast(), iov_len: reply.len() };
        }
        let slot = &mut slots[usize::from(places[0])];
        let header = &mut header.msg_hdr;
        header.msg_name = (&raw mut slot.peer).cast();
        header.msg_namelen = slot.peer_len;
        let control = match places.len() {
            1 => slot.control.of_reply(),
            _ => Some(slot.control.of_piece(slot.reply.len() as u16)),
        };
        if let Some((control, length)) = control {
            header.msg_control = control.cast();
            header.msg_controllen = length as _;
        }
        header.msg_iov = own.as_mut_ptr();
        header.msg_iovlen = own.len() as _;
    }
    send_all(pieces.count(), |sent| {
        let rest = &mut headers[sent..pieces.count()];
        // SAFETY: each of these headers points to the name and control messages of a slot and, by its iovecs, to
        // parts of `replies`, with their lengths; all of these are borrowed until the function returns. The system
        // only reads what they point to, and writes lengths into the headers.
        let result = unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as _, 0) };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    })
}

/// Sends messages `0..count`, whatever becomes of single ones. `send` tries all from the given one on, and
/// says how many it sent, or what is wrong with the first of them. Gives those that were not sent, and why
/// the last of them was not.
fn send_all(
    count: usize,
    mut send: impl FnMut(usize) -> io::Result<usize>,
) -> Option<(Vec<usize>, io::Error)> {
    let (mut failed, mut why) = (Vec::new(), None);
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
        let end = match error.raw_os_error() {
            Some(libc::EINTR) => continue,
            // An ICMP error from before, which is told of now and thereby gone: this message was not tried.
            Some(libc::ECONNREFUSED) if retried != Some(at) => {
                retried = Some(at);
                continue;
            }
            // No room after all that waiting; there is none for the others either.
            Some(libc::EAGAIN) => count,
            _ => at + 1,
        };
        failed.extend(at..end);
        at = end;
        why = Some(error);
    }
    why.map(|error| (failed, error))
}

#[cfg(test)]
mod tests {
    use std::iter;

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
        (sent, failed.map_or(0, |(lost, _)| lost.len()))
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
        let (lost, _) = send(&server, &mut slots[..clients.len()], &replies, true).unwrap();
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

    /// What a client has got: from where, how long, and of which octet.
    fn replies_to(client: &UdpSocket) -> Vec<(SocketAddr, usize, u8)> {
        client.set_nonblocking(true).unwrap();
        let mut buffer = [0; 2048];
        iter::from_fn(|| {
            let (size, from) = client.recv_from(&mut buffer).ok()?;
            assert!(buffer[..size].iter().all(|&octet| octet == buffer[0]));
            Some((from, size, buffer[0]))
        })
        .collect()
    }

    #[test]
    fn pieces_arrive_as_the_replies_that_they_are() {
        for (bound, asked) in [
            ("127.0.0.1:0", &["127.0.0.1"][..]),
            ("0.0.0.0:0", &["127.0.0.1", "127.0.0.2"]),
            ("[::1]:0", &["::1"]),
            ("[::]:0", &["::1", "127.0.0.2", "127.0.0.3"]),
        ] {
            let server = UdpSocket::bind(bound).unwrap();
            assert!(takes_pieces(&server));
            prepare(&server).unwrap();
            let port = server.local_addr().unwrap().port();
            let asked: Vec<IpAddr> = asked.iter().map(|address| address.parse().unwrap()).collect();
            let clients: Vec<UdpSocket> =
                asked.iter().map(|&address| UdpSocket::bind((address, 0)).unwrap()).collect();
            for is_stamped in [false, true] {
                set_timestamps(&server, is_stamped).unwrap();
                // Queries take turns, of which each third has a longer reply; the last client asks all addresses.
                let last = &clients[clients.len() - 1];
                let all =
                    asked.iter().filter(|address| address.is_ipv4() == asked[asked.len() - 1].is_ipv4());
                let ways = clients.iter().zip(&asked).chain(all.map(|address| (last, address)));
                let ways: Vec<(&UdpSocket, &IpAddr)> = ways.collect();
                let mut expected = vec![Vec::new(); clients.len()];
                for number in 0..30 {
                    let (client, &address) = ways[number % ways.len()];
                    let query = vec![number as u8; if number % 3 == 0 { 700 } else { 200 }];
                    client.send_to(&query, (address, port)).unwrap();
                    let client = clients.iter().position(|other| ptr::eq(other, client)).unwrap();
                    expected[client].push((SocketAddr::from((address, port)), query.len(), number as u8));
                }
                let mut slots = slots();
                let mut received = 0;
                while received < 30 {
                    received += receive(&server, &mut slots[received..30], Wait::ForOne, is_stamped).unwrap();
                }
                let mut replies = Vec::new();
                for slot in &mut slots[..30] {
                    let begin = replies.len();
                    replies.extend_from_slice(slot.packet());
                    slot.reply = begin..replies.len();
                }
                assert!(send(&server, &mut slots[..30], &replies, true).is_none());
                for (client, mut expected) in clients.iter().zip(expected) {
                    let mut got = replies_to(client);
                    got.sort();
                    expected.sort();
                    assert_eq!(got, expected, "{bound}");
                }
            }
        }
    }

    #[test]
    fn a_piece_that_is_refused_is_sent_reply_by_reply() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..4 {
            client.send_to(&[7; 10], server.local_addr().unwrap()).unwrap();
        }
        let mut slots = slots();
        receive_exactly(&server, &mut slots, 4);
        slots[..4].iter_mut().for_each(|slot| slot.reply = 0..10);
        // Nothing takes pieces where there are no checksums, be it that those of a piece are made by others.
        set_option(&server, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let whole = Pieces::of(slots.iter().map(Slot::key), |_, _| true);
        let (failed, _) = send_pieces(&server, &mut slots, &[7; 10], &whole).unwrap();
        assert_eq!(failed, [0]);
        assert!(send(&server, &mut slots[..4], &[7; 10], true).is_none());
        assert_eq!(replies_to(&client).len(), 4);
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
