//! Questions to the kernel, and its answers (rtnetlink(7)).

use std::io::{self, Read as _};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::sys::socket::AddressFamily;
use socket2::{Domain, Protocol, Socket, Type};
use tracing::debug;

/// As much as the kernel says at once.
const BUFFER: usize = 32 << 10;

/// `NETLINK_ROUTE`
const ROUTE: i32 = 0;

/// The answer to a question.
pub(super) fn get(question: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
    let answer = ask(question, NLM_F_REQUEST)?.pop();
    answer.ok_or_else(|| io::Error::other("the kernel's answer cannot be read"))
}

/// All that there is of a kind.
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

/// Takes in what has been read; whether that was the end of it.
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
            // Of one interface, or route, among many. The next kernel may have more to say of it
            // than is known here.
            Err(error) => debug!("passed over what the kernel says: {error}"),
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
    fn a_refusal_is_the_kernels_error() {
        // Of no address family, to nowhere.
        let error = get(RouteNetlinkMessage::GetRoute(RouteMessage::default())).unwrap_err();
        assert!(error.raw_os_error().is_some(), "{error:?}");
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        assert!(take(&[20, 0, 0, 0, 3, 0, 2, 0], &mut Vec::new()).is_err());
    }
}
