//! Sending replies in batches by `sendmmsg`, which the standard library does not offer.
//!
//! **A failure to send** concerns one datagram, not the batch: that datagram is skipped and the
//! rest is sent. The rest is given up only if the socket has had no room for its whole write
//! timeout. A message of several replies (`udp/gso.rs`) that the kernel refuses is sent again reply
//! by reply: its path may have a smaller MTU, or lead through a tunnel without GSO.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use libc::c_int;

use super::BATCH;
use super::batch::{NO_HEADER, NO_IOVEC, Slot};
use super::gso::Messages;
use crate::net::socket::get_option;

/// How many batches are sent reply by reply after a grouped message was refused. Long enough that
/// refusals cost nothing, and no longer, since perhaps only one client's path lacks GSO.
const GSO_PAUSE: u32 = 256;

/// Sends replies, grouped into GSO messages where the path allows it.
pub(super) struct ReplySender {
    /// Whether the kernel supports GSO. A kernel without it would send a grouped message as one
    /// datagram.
    has_gso: bool,
    /// For how many more batches replies are not grouped, after a grouped message was refused.
    gso_pause: u32,
}

impl ReplySender {
    pub(super) fn new(socket: &UdpSocket) -> Self {
        Self { has_gso: get_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok(), gso_pause: 0 }
    }

    /// Sends the replies of all slots that have one, out of `replies`. Returns the number of
    /// replies that were lost and the last error; `None` if all were sent.
    pub(super) fn send(
        &mut self,
        socket: &UdpSocket,
        slots: &mut [Slot],
        replies: &[u8],
    ) -> Option<(usize, io::Error)> {
        let may_be_alike = self.has_gso && self.gso_pause == 0;
        self.gso_pause = self.gso_pause.saturating_sub(1);
        let alike =
            |first: usize, position: usize| may_be_alike && slots[first].shares_route(&slots[position]);
        let messages = Messages::of(slots.iter().map(Slot::key), alike);
        let failed = send_messages(socket, slots, replies, &messages);
        if failed.is_empty() {
            return None;
        }
        let (refused, lost): (Vec<Unsent>, Vec<Unsent>) = failed
            .into_iter()
            .partition(|unsent| unsent.may_be_due_to_gso() && messages.replies(unsent.message).len() > 1);
        let single = messages.ungrouped(refused.iter().map(|unsent| unsent.message));
        let lost_single = send_messages(socket, slots, replies, &single);
        if lost_single.len() < single.count() {
            self.gso_pause = GSO_PAUSE;
        }
        let count = lost.iter().map(|unsent| messages.replies(unsent.message).len()).sum::<usize>();
        let last = lost_single.last().or_else(|| lost.last())?;
        Some((count + lost_single.len(), io::Error::from_raw_os_error(last.code)))
    }
}

/// A message that was not sent: its number in the batch, and the error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unsent {
    message: usize,
    code: c_int,
}

impl Unsent {
    /// Tells whether grouping may be the cause: the message exceeds the device's MTU, a tunnel or
    /// filter refuses GSO, or the kernel does not know it.
    fn may_be_due_to_gso(self) -> bool {
        matches!(self.code, libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::EPERM)
    }
}

/// Sends messages of replies by `sendmmsg`, and returns those that were not sent.
fn send_messages(socket: &UdpSocket, slots: &mut [Slot], replies: &[u8], messages: &Messages) -> Vec<Unsent> {
    let mut iovecs = [NO_IOVEC; BATCH];
    let mut headers = [NO_HEADER; BATCH];
    let mut rest = &mut iovecs[..];
    for (number, header) in headers.iter_mut().take(messages.count()).enumerate() {
        let positions = messages.replies(number);
        let own;
        (own, rest) = rest.split_at_mut(positions.len());
        for (iovec, &position) in own.iter_mut().zip(positions) {
            let reply = &replies[slots[usize::from(position)].reply.clone()];
            *iovec = libc::iovec { iov_base: reply.as_ptr().cast_mut().cast(), iov_len: reply.len() };
        }
        let slot = &mut slots[usize::from(positions[0])];
        let header = &mut header.msg_hdr;
        header.msg_name = (&raw mut slot.peer).cast();
        header.msg_namelen = slot.peer_len;
        let control = match positions.len() {
            1 => slot.control.for_reply(),
            _ => Some(slot.control.for_segments(slot.reply.len() as u16)),
        };
        if let Some((control, length)) = control {
            header.msg_control = control.cast();
            header.msg_controllen = length as _;
        }
        header.msg_iov = own.as_mut_ptr();
        header.msg_iovlen = own.len() as _;
    }
    send_all(messages.count(), |sent| {
        let rest = &mut headers[sent..messages.count()];
        // SAFETY: each header points to the name and control messages of a slot and, by its iovecs,
        // to parts of `replies`, with their lengths. All of these stay borrowed until the function
        // returns. The kernel only reads what the pointers lead to, and writes lengths into the
        // headers.
        let result = unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as _, 0) };
        usize::try_from(result).map_err(|_| io::Error::last_os_error())
    })
}

/// Sends the messages `0..count`, past single failures. `send` tries all messages from the given
/// one on, and returns how many it sent or the error of the first. Returns the messages that were
/// not sent.
fn send_all(count: usize, mut send: impl FnMut(usize) -> io::Result<usize>) -> Vec<Unsent> {
    let mut failed = Vec::new();
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
        let code = error.raw_os_error().unwrap_or(libc::EIO);
        let end = match code {
            libc::EINTR => continue,
            // A pending ICMP error of an earlier reply, which reading has cleared. This message was
            // not tried yet.
            libc::ECONNREFUSED if retried != Some(at) => {
                retried = Some(at);
                continue;
            }
            // The socket's send buffer stayed full for the whole timeout, so the other messages
            // have no room either.
            libc::EAGAIN => count,
            _ => at + 1,
        };
        failed.extend((at..end).map(|message| Unsent { message, code }));
        at = end;
    }
    failed
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::iter;
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::time::Duration;

    use super::super::batch::tests::{receive_exactly, slots};
    use super::super::batch::{Wait, configure, receive, set_timestamps};
    use super::*;
    use crate::net::socket::set_option;

    /// Runs `send_all` with a stand-in for `sendmmsg` that fails with the given errors. Returns the
    /// sent messages and the number of failures.
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
        (sent, failed.len())
    }

    #[test]
    fn a_message_that_cannot_be_sent_does_not_stop_the_rest() {
        for code in [libc::EMSGSIZE, libc::EINVAL, libc::EPERM, libc::ENETUNREACH, libc::ENOBUFS] {
            assert_eq!(send_with(&[(1, code)], 4), (vec![0, 2, 3], 1));
            assert_eq!(send_with(&[(0, code), (3, code)], 4), (vec![1, 2], 2));
        }
    }

    #[test]
    fn a_message_is_sent_again_after_an_error_that_is_not_its_own() {
        assert_eq!(send_with(&[(1, libc::EINTR)], 3), (vec![0, 1, 2], 0));
        assert_eq!(send_with(&[(1, libc::ECONNREFUSED)], 3), (vec![0, 1, 2], 0));
        // The same error again is about this message.
        assert_eq!(send_with(&[(1, libc::ECONNREFUSED), (1, libc::ECONNREFUSED)], 3), (vec![0, 2], 1));
    }

    #[test]
    fn a_full_send_buffer_gives_up_the_rest() {
        assert_eq!(send_with(&[(2, libc::EAGAIN)], 5), (vec![0, 1], 3));
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
        // Port 0 cannot be sent to.
        // SAFETY: the peer is of the family of the sockets above.
        unsafe { (*(&raw mut slots[1].peer).cast::<libc::sockaddr_in>()).sin_port = 0 };
        // 70000 bytes do not fit into one datagram.
        replies.resize(70_000, 0);
        slots[2].reply = 0..replies.len();
        // This client gets no reply.
        slots[3].reply = 0..0;
        let (lost, _) =
            ReplySender::new(&server).send(&server, &mut slots[..clients.len()], &replies).unwrap();
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

    /// Receives `count` replies: the sender, the length, and the byte that each consists of.
    fn replies_to(client: &UdpSocket, count: usize) -> Vec<(SocketAddr, usize, u8)> {
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut buffer = [0; 2048];
        let mut replies: Vec<_> = (0..count)
            .map(|_| {
                let (size, from) = client.recv_from(&mut buffer).unwrap();
                assert!(buffer[..size].iter().all(|&octet| octet == buffer[0]));
                (from, size, buffer[0])
            })
            .collect();
        client.set_nonblocking(true).unwrap();
        assert!(client.recv(&mut buffer).is_err(), "more than was asked for");
        client.set_nonblocking(false).unwrap();
        replies.sort_unstable();
        replies
    }

    /// Binds a socket at each of these addresses, all with the same port.
    fn with_one_port(addresses: &[IpAddr]) -> Vec<UdpSocket> {
        let first = UdpSocket::bind((addresses[0], 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let others: io::Result<Vec<UdpSocket>> =
            addresses[1..].iter().map(|&address| UdpSocket::bind((address, port))).collect();
        // Another process may use that port at another of these addresses.
        others.map_or_else(|_| with_one_port(addresses), |others| iter::once(first).chain(others).collect())
    }

    #[test]
    fn grouped_replies_arrive_as_single_datagrams() {
        for (bound, asked) in [
            ("127.0.0.1:0", &["127.0.0.1"][..]),
            ("0.0.0.0:0", &["127.0.0.1", "127.0.0.2"]),
            ("[::1]:0", &["::1"]),
            ("[::]:0", &["::1", "127.0.0.2", "127.0.0.3"]),
        ] {
            let server = UdpSocket::bind(bound).unwrap();
            configure(&server).unwrap();
            let port = server.local_addr().unwrap().port();
            let asked: Vec<IpAddr> = asked.iter().map(|address| address.parse().unwrap()).collect();
            let clients = with_one_port(&asked);
            // Each client asks the address that it has; the last client asks all addresses of its
            // family.
            let last = clients.len() - 1;
            let others = asked.iter().take(last).filter(|other| other.is_ipv4() == asked[last].is_ipv4());
            let ways: Vec<(usize, IpAddr)> =
                asked.iter().copied().enumerate().chain(others.map(|&other| (last, other))).collect();
            for is_stamped in [false, true] {
                set_timestamps(&server, is_stamped).unwrap();
                let mut expected = vec![Vec::new(); clients.len()];
                let mut distinct = BTreeSet::new();
                for number in 0..BATCH {
                    let (client, address) = ways[number % ways.len()];
                    let query = vec![number as u8; if number % 5 == 0 { 700 } else { 200 }];
                    clients[client].send_to(&query, (address, port)).unwrap();
                    expected[client].push((SocketAddr::from((address, port)), query.len(), number as u8));
                    distinct.insert((client, address, query.len()));
                }
                let mut slots = slots();
                let mut received = 0;
                while received < BATCH {
                    received += receive(&server, &mut slots[received..], Wait::ForOne, is_stamped).unwrap();
                }
                let mut replies = Vec::new();
                for slot in &mut slots {
                    let begin = replies.len();
                    replies.extend_from_slice(slot.packet());
                    slot.reply = begin..replies.len();
                }
                let alike = |first: usize, position: usize| slots[first].shares_route(&slots[position]);
                let messages = Messages::of(slots.iter().map(Slot::key), alike);
                assert_eq!(messages.count(), distinct.len(), "{bound}");
                assert_eq!(send_messages(&server, &mut slots, &replies, &messages), []);
                for (client, mut expected) in clients.iter().zip(expected) {
                    expected.sort_unstable();
                    assert_eq!(replies_to(client, expected.len()), expected, "{bound}");
                }
            }
        }
    }

    #[test]
    fn a_grouped_message_that_is_refused_is_sent_reply_by_reply() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..4 {
            client.send_to(&[7; 10], server.local_addr().unwrap()).unwrap();
        }
        let mut slots = slots();
        receive_exactly(&server, &mut slots, 4);
        slots[..4].iter_mut().for_each(|slot| slot.reply = 0..10);
        let mut sender = ReplySender::new(&server);
        assert!(sender.has_gso);
        assert!(sender.send(&server, &mut slots, &[7; 10]).is_none());
        assert_eq!((replies_to(&client, 4).len(), sender.gso_pause), (4, 0));
        // Without checksums the kernel refuses grouped messages.
        set_option(&server, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        assert!(sender.send(&server, &mut slots, &[7; 10]).is_none());
        assert_eq!((replies_to(&client, 4).len(), sender.gso_pause), (4, GSO_PAUSE));
        // For a while, replies are sent one by one from the beginning.
        assert!(sender.send(&server, &mut slots, &[7; 10]).is_none());
        assert_eq!((replies_to(&client, 4).len(), sender.gso_pause), (4, GSO_PAUSE - 1));
    }

    #[test]
    fn a_grouped_message_without_a_route_loses_all_its_replies() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..3 {
            client.send_to(b"x", server.local_addr().unwrap()).unwrap();
        }
        let mut slots = slots();
        receive_exactly(&server, &mut slots, 3);
        for slot in &mut slots[..3] {
            slot.reply = 0..10;
            // A loopback address has no route to the documentation network.
            // SAFETY: the peer is of the family of the sockets above.
            let peer = unsafe { &mut *(&raw mut slot.peer).cast::<libc::sockaddr_in>() };
            peer.sin_addr.s_addr = u32::from(Ipv4Addr::new(192, 0, 2, 1)).to_be();
        }
        let mut sender = ReplySender::new(&server);
        let (lost, _) = sender.send(&server, &mut slots, &[7; 10]).unwrap();
        assert_eq!((lost, sender.gso_pause), (3, 0));
    }
}
