//! Why RDMA cannot be used, in words, and whether that may pass.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use multinet_memory::GpuError;
use multinet_verbs::{LoadError, Shortage, Unreachable};
use thiserror::Error;

use crate::gid::{Place, Rejection};
use crate::way::Failure;

/// Why RDMA cannot be used.
#[derive(Debug, Error)]
pub(crate) enum Unusable {
    #[error("cannot look for RDMA devices: {0}")]
    Devices(io::Error),
    #[error("this machine has no RDMA device")]
    NoDevice,
    #[error("the kernel has no RDMA: its modules (ib_core, ib_uverbs and the device's own) are not loaded")]
    NoKernel,
    #[error("no RDMA device{wanted} has a GID of {address}{}{}", listed(.rejected), counted(.rejected))]
    NoRow { address: IpAddr, wanted: String, rejected: Vec<(Place, Rejection)> },
    #[error("{0}")]
    Library(#[from] LoadError),
    #[error("libibverbs does not show {0}")]
    NotShown(String),
    #[error("{0}")]
    Call(#[from] multinet_verbs::Error),
    #[error("{0}")]
    Memory(#[from] Shortage),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    GpuMemory(#[from] Unreachable),
    #[error("frames of {0} bytes are too large for RDMA")]
    TooLarge(u32),
    #[error("{0}")]
    Peer(&'static str),
    #[error("{0} cannot be named to verbs, which count ports and rows by 8 bits")]
    Place(Place),
    #[error("{0} belongs to another network namespace's interface of that name")]
    Foreign(Place),
    #[error("{}", each(.0))]
    All(Vec<(Place, Self)>),
    #[error("the way does not work {0}")]
    Ping(#[from] Failure),
    #[error("the way {names} does not work: nothing is heard of a write within {after:?}")]
    Silent { names: String, after: Duration },
}

impl Unusable {
    /// Whether it will be so the next time, too, as far as can be told.
    pub(crate) fn is_lasting(&self) -> bool {
        match self {
            Self::NoDevice | Self::NoKernel | Self::Library(_) | Self::NotShown(_) => true,
            Self::Call(_) | Self::Place(_) => true,
            Self::Memory(shortage) => shortage.is_lasting(),
            Self::NoRow { rejected, .. } => listed(rejected).is_empty(),
            Self::All(failures) => failures.iter().all(|(_, error)| error.is_lasting()),
            _ => false,
        }
    }

    /// Whether another row, perhaps of another device, may do.
    pub(super) fn is_of_the_place(&self) -> bool {
        matches!(self, Self::NotShown(_) | Self::Call(_) | Self::Place(_) | Self::Foreign(_))
    }

    /// Whether a GPU has not what is wanted of it, and the machine may have.
    pub(super) fn is_of_the_gpu(&self) -> bool {
        match self {
            Self::Gpu(_) => true,
            Self::GpuMemory(unreachable) => !unreachable.is_of_the_device(),
            _ => false,
        }
    }

    /// In words, with what to do.
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

/// Rows that might have been the one.
fn listed(rejected: &[(Place, Rejection)]) -> String {
    let near = rejected.iter().filter(|(_, reason)| *reason != Rejection::OtherAddress);
    near.map(|(place, reason)| format!("; {place} {reason}")).collect()
}

/// How many there are, where none might have been the one.
fn counted(rejected: &[(Place, Rejection)]) -> String {
    match rejected.len() {
        0 => String::new(),
        _ if !listed(rejected).is_empty() => String::new(),
        count => format!("; {count} of other addresses are there, `multinet doctor` names them"),
    }
}

fn each(failures: &[(Place, Unusable)]) -> String {
    let each = failures.iter().map(|(place, error)| format!("{place}: {}", error.reason()));
    each.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::gid::LinkLayer;

    #[test]
    fn where_no_row_has_the_address_the_others_are_counted() {
        let row = |index, reason| {
            let (device, gid) = ("mlx5_2".to_owned(), Ipv6Addr::LOCALHOST);
            (Place { device, port: 1, link: LinkLayer::Ethernet, index, gid }, reason)
        };
        let no_row = |rejected| {
            let address = [192, 0, 2, 1].into();
            let error = Unusable::NoRow { address, wanted: String::new(), rejected };
            (error.reason(), error.is_lasting())
        };
        let none = "no RDMA device has a GID of 192.0.2.1".to_owned();
        assert_eq!(no_row(Vec::new()), (none.clone(), true));
        let mut rows = vec![row(0, Rejection::OtherAddress), row(1, Rejection::OtherAddress)];
        let counted = format!("{none}; 2 of other addresses are there, `multinet doctor` names them");
        assert_eq!(no_row(rows.clone()), (counted, true));
        // One that might have been it says more.
        rows.push(row(2, Rejection::Second));
        assert_eq!(no_row(rows), (format!("{none}; mlx5_2 port 1 GID 2 (::1) would do as well"), false));
    }
}
