//! Asks the kernel how network namespaces share RDMA devices, as `rdma system` does: by netlink
//! (`<rdma/rdma_netlink.h>`), which needs no privilege.

use std::io;
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use super::super::facts::Namespaces;

/// Length of a netlink message's header, in bytes.
const HEADER: usize = 16;
/// Length of a netlink attribute's header, in bytes.
const ATTRIBUTE: usize = 4;
/// Flag of a netlink message that is a request (NLM_F_REQUEST).
const REQUEST: u16 = 1;
/// Type of a netlink message that is an error (NLMSG_ERROR).
const ERROR: u16 = 2;
/// Type of the netlink message that asks for the RDMA settings of the system
/// (RDMA_NLDEV_CMD_SYS_GET of RDMA_NL_NLDEV).
const SYS_GET: u16 = 5 << 10 | 6;
/// Number of the netlink attribute with the namespace mode (RDMA_NLDEV_SYS_ATTR_NETNS_MODE).
const NETNS_MODE: u16 = 66;
/// Bits of a netlink attribute's type that are its number (NLA_TYPE_MASK).
const NUMBER: u16 = 0x3fff;

/// Asks the kernel. If its RDMA modules are not loaded, the question loads them, so callers check
/// that first.
pub(super) fn namespaces() -> io::Result<Namespaces> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRDMA)?;
    sendto(socket.as_raw_fd(), &question(), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut bytes = [0; 1024];
    // The kernel has answered when sendto returns.
    let length = recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT)?;
    answer(bytes.get(..length).unwrap_or_default())
}

/// Returns a message without attributes: length, type and flags. Sequence number and port are not
/// needed for one question.
fn question() -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&(HEADER as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SYS_GET.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    bytes
}

fn answer(bytes: &[u8]) -> io::Result<Namespaces> {
    let unclear = || io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer makes no sense");
    let length = first(bytes).map_or(0, u32::from_ne_bytes);
    let message = usize::try_from(length).ok().and_then(|length| bytes.get(..length)).ok_or_else(unclear)?;
    let kind = message.get(4..).and_then(first).map(u16::from_ne_bytes);
    let mut rest = message.get(HEADER..).ok_or_else(unclear)?;
    match kind {
        Some(SYS_GET) => {}
        Some(ERROR) => {
            let number = first(rest).map(i32::from_ne_bytes).ok_or_else(unclear)?;
            return Err(io::Error::from_raw_os_error(number.saturating_neg()));
        }
        _ => return Err(unclear()),
    }
    while let (Some(length), Some(number)) = (first(rest), rest.get(2..).and_then(first)) {
        let length = usize::from(u16::from_ne_bytes(length));
        let value = rest.get(ATTRIBUTE..length).ok_or_else(unclear)?;
        if u16::from_ne_bytes(number) & NUMBER == NETNS_MODE {
            return match value {
                [0] => Ok(Namespaces::Exclusive),
                [1] => Ok(Namespaces::Shared),
                _ => Err(unclear()),
            };
        }
        rest = rest.get(length.next_multiple_of(ATTRIBUTE)..).unwrap_or_default();
    }
    // Before Linux 5.2, which has the modes, all devices were shared.
    Err(io::Error::new(io::ErrorKind::Unsupported, "this kernel does not tell"))
}

fn first<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, rest: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from(((HEADER + rest.len()) as u32).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(rest);
        bytes
    }

    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn the_mode_is_found_among_other_attributes() {
        for (value, mode) in [(0, Namespaces::Exclusive), (1, Namespaces::Shared)] {
            let rest =
                [attribute(90, &[7]), attribute(NETNS_MODE, &[value]), attribute(91, &[0; 9])].concat();
            assert_eq!(answer(&message(SYS_GET, &rest)).unwrap(), mode);
        }
    }

    #[test]
    fn a_refusal_has_the_kernels_reason() {
        let number = nix::errno::Errno::EOPNOTSUPP as i32;
        let error = answer(&message(ERROR, &(-number).to_ne_bytes())).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(number));
    }

    #[test]
    fn no_answer_is_taken_for_another() {
        let good = message(SYS_GET, &attribute(NETNS_MODE, &[1]));
        for length in 0..good.len() {
            assert!(answer(&good[..length]).is_err(), "{length}");
        }
        for bytes in [
            message(SYS_GET, &[]),
            message(SYS_GET, &attribute(65, &[1])),
            message(SYS_GET, &attribute(NETNS_MODE, &[2])),
            message(SYS_GET, &attribute(NETNS_MODE, &[])),
            message(SYS_GET, &[0, 0, 66, 0]),
            message(SYS_GET, &[255, 255, 66, 0, 1]),
            message(ERROR, &[]),
            message(3, &attribute(NETNS_MODE, &[1])),
        ] {
            assert!(answer(&bytes).is_err(), "{bytes:?}");
        }
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..10_000 {
            let mut rest = vec![0; random.usize(..40)];
            random.fill(&mut rest);
            let _ = answer(&message(SYS_GET, &rest));
        }
    }
}
