//! The reasons why RDMA cannot be used, as messages, and whether each may pass.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use multinet_memory::GpuError;
use multinet_verbs::{GpuAccessError, LoadError, LockedMemoryShortage};
use thiserror::Error;

use crate::gid::{DeviceGid, Rejection};

/// Reason why an RDMA connection cannot be used any more, in words.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct QueuePairError(pub(super) String);

/// Why RDMA cannot be used for a connection, found before the first frame.
#[derive(Debug, Error)]
pub(crate) enum Unusable {
    #[error("cannot list RDMA devices: {0}")]
    Devices(io::Error),
    #[error("this machine has no RDMA device")]
    NoDevice,
    #[error("the kernel has no RDMA: its modules (ib_core, ib_uverbs and the device's own) are not loaded")]
    NoKernel,
    #[error("no RDMA device{wanted} has a GID of {address}{}{}", candidates(.rejected), others(.rejected))]
    NoGid { address: IpAddr, wanted: String, rejected: Vec<(DeviceGid, Rejection)> },
    #[error("{0}")]
    Library(#[from] LoadError),
    #[error("libibverbs does not show {0}")]
    NotShown(String),
    #[error("{0}")]
    Call(#[from] multinet_verbs::Error),
    #[error("{0}")]
    Memory(#[from] LockedMemoryShortage),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    GpuMemory(#[from] GpuAccessError),
    #[error("frames of {0} bytes are too large for RDMA")]
    TooLarge(u32),
    #[error("{0}")]
    Peer(&'static str),
    #[error("{0} cannot be named to verbs, whose port numbers and GID indexes have 8 bits")]
    Numbers(DeviceGid),
    #[error("{0} belongs to another network namespace's interface of that name")]
    Foreign(DeviceGid),
    #[error("{}", each(.0))]
    All(Vec<(DeviceGid, Self)>),
    #[error("the RDMA test write failed {0}")]
    Ping(#[from] QueuePairError),
    #[error("RDMA {names} does not work: a test write has not completed within {after:?}")]
    Silent { names: String, after: Duration },
}

impl Unusable {
    /// Returns whether the next attempt will fail for the same reason, as far as that is known.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Self::NoDevice | Self::NoKernel | Self::Library(_) | Self::NotShown(_) => true,
            Self::Call(_) | Self::Numbers(_) => true,
            Self::Memory(shortage) => shortage.is_lasting(),
            Self::NoGid { rejected, .. } => candidates(rejected).is_empty(),
            Self::All(failures) => failures.iter().all(|(_, error)| error.is_lasting()),
            _ => false,
        }
    }

    /// Returns whether another GID of the address, perhaps of another device, may work.
    pub(super) fn may_try_next_gid(&self) -> bool {
        matches!(self, Self::NotShown(_) | Self::Call(_) | Self::Numbers(_) | Self::Foreign(_))
    }

    /// Returns whether only the GPU is short of something, so that the machine's memory may do.
    pub(super) fn is_of_the_gpu(&self) -> bool {
        match self {
            Self::Gpu(_) => true,
            Self::GpuMemory(error) => !error.is_device_gone(),
            _ => false,
        }
    }

    /// Returns the message of the error with a hint at what to do, if there is one.
    pub(crate) fn reason(&self) -> String {
        let hint = match self {
            Self::Memory(shortage) => return format!("{self}; {}", shortage.hint()),
            Self::Library(error) => Some(error.hint()),
            Self::Call(error) => error.hint(),
            Self::NotShown(_) => Some("`multinet doctor` says what is missing"),
            Self::Silent { .. } => Some("soft-RoCE in a network namespace of its own behaves so"),
            _ => None,
        };
        match hint {
            Some(hint) => format!("{self}; {hint}"),
            None => self.to_string(),
        }
    }
}

/// Lists the GIDs of the wanted address that cannot be used, with the reasons, for the message.
fn candidates(rejected: &[(DeviceGid, Rejection)]) -> String {
    let near = rejected.iter().filter(|(_, reason)| *reason != Rejection::OtherAddress);
    near.map(|(gid, reason)| format!("; {gid} {reason}")).collect()
}

/// Says how many GIDs of other addresses there are, if the wanted address has none, for the
/// message.
fn others(rejected: &[(DeviceGid, Rejection)]) -> String {
    match rejected.len() {
        0 => String::new(),
        _ if !candidates(rejected).is_empty() => String::new(),
        count => format!("; {count} of other addresses are there, `multinet doctor` names them"),
    }
}

fn each(failures: &[(DeviceGid, Unusable)]) -> String {
    let each = failures.iter().map(|(gid, error)| format!("{gid}: {}", error.reason()));
    each.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::gid::LinkLayer;

    #[test]
    fn gids_of_other_addresses_are_counted_unless_one_of_the_address_is_rejected() {
        let rejected = |index, reason| {
            let (device, gid) = ("mlx5_2".to_owned(), Ipv6Addr::LOCALHOST);
            (DeviceGid { device, port: 1, link: LinkLayer::Ethernet, index, gid }, reason)
        };
        let no_gid = |rejected| {
            let address = [192, 0, 2, 1].into();
            let error = Unusable::NoGid { address, wanted: String::new(), rejected };
            (error.reason(), error.is_lasting())
        };
        let none = "no RDMA device has a GID of 192.0.2.1".to_owned();
        assert_eq!(no_gid(Vec::new()), (none.clone(), true));
        let mut gids = vec![rejected(0, Rejection::OtherAddress), rejected(1, Rejection::OtherAddress)];
        let counted = format!("{none}; 2 of other addresses are there, `multinet doctor` names them");
        assert_eq!(no_gid(gids.clone()), (counted, true));
        gids.push(rejected(2, Rejection::Second));
        assert_eq!(no_gid(gids), (format!("{none}; mlx5_2 port 1 GID 2 (::1) would do as well"), false));
    }
}
