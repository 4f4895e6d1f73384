//! Requests to the kernel over netlink (rtnetlink(7)), and their replies.

use std::io::{self, Read as _};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::sys::socket::AddressFamily;
use socket2::{Domain, Protocol, Socket, Type};
use tracing::debug;

/// Size of the receive buffer: the kernel puts at most 32 KiB into one datagram of a dump.
const BUFFER: usize = 32 << 10;

/// Netlink protocol `NETLINK_ROUTE`, for interfaces, addresses and routes.
const ROUTE: i32 = 0;

/// Sends a netlink request, and returns the kernel's one reply.
pub(super) fn get(question: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
    let answer = ask(question, NLM_F_REQUEST)?.pop();
    answer.ok_or_else(|| io::Error::other("the kernel's reply cannot be read"))
}

/// Sends a netlink request for a whole table, and returns all its entries.
pub(super) fn dump(question: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    ask(question, NLM_F_REQUEST | NLM_F_DUMP)
}

fn ask(question: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut header = NetlinkHeader::default();
    header.flags = flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);

    let domain = Domain::from(AddressFamily::Netlink as i32);
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(ROUTE)))?;
    socket.send(&bytes)?;
    let mut buffer = vec![0; BUFFER];
    let mut answers = Vec::new();
    loop {
        let length = (&socket).read(&mut buffer)?;
        let is_end = take(&buffer[..length], &mut answers)?;
        if is_end || flags & NLM_F_DUMP == 0 {
            return Ok(answers);
        }
    }
}

/// Appends the messages of one datagram. Returns whether the last one ended the dump.
fn take(mut bytes: &[u8], answers: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
    while !bytes.is_empty() {
        let length = NetlinkBuffer::new_checked(bytes).map_err(io::Error::other)?.length() as usize;
        let (message, rest) = bytes.split_at(length.next_multiple_of(4).min(bytes.len()));
        bytes = rest;
        match NetlinkMessage::deserialize(message).map(|message| message.payload) {
            Ok(NetlinkPayload::InnerMessage(answer)) => answers.push(answer),
            Ok(NetlinkPayload::Error(error)) if error.code.is_some() => return Err(error.to_io()),
            Ok(NetlinkPayload::Done(_)) => return Ok(true),
            Ok(_) => {}
            // A later kernel may describe one interface or route in a way that the crate does not
            // know. The others still count.
            Err(error) => debug!("skipped an unreadable netlink message: {error}"),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::LinkMessage;
    use netlink_packet_route::route::RouteMessage;

    use super::*;

    #[test]
    fn a_dump_is_read_to_its_end() {
        let links = dump(RouteNetlinkMessage::GetLink(LinkMessage::default())).unwrap();
        assert!(links.iter().all(|link| matches!(link, RouteNetlinkMessage::NewLink(_))), "{links:?}");
        assert!(!links.is_empty(), "there is the loopback interface at least");
    }

    #[test]
    fn a_refused_request_gives_the_kernels_error() {
        // A lookup needs an address family and a destination.
        let error = get(RouteNetlinkMessage::GetRoute(RouteMessage::default())).unwrap_err();
        assert!(error.raw_os_error().is_some(), "{error:?}");
    }

    #[test]
    fn a_message_that_is_cut_off_is_an_error() {
        assert!(take(&[20, 0, 0, 0, 3, 0, 2, 0], &mut Vec::new()).is_err());
    }
}
