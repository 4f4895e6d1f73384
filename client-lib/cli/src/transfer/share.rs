//! Identities of transfers, and fair shares for their senders. Pure.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::time::Instant;

use multinet_client::Sender;
use ring::digest::{Context, SHA256};

/// The sender of a transfer, as far as it is known. All transfers of one owner have one share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The names in the sender's certificate.
    Certificate(Vec<String>),
    Address(IpAddr),
}

impl Owner {
    pub(super) fn of(sender: Sender<'_>) -> Self {
        match sender.certificate_names() {
            [] => Self::Address(sender.address().ip()),
            names => Self::Certificate(names.to_vec()),
        }
    }
}

/// Bit that the ids of `multinet get` have, and those of `multinet recv` do not have: neither takes
/// files for its own that the other one has left beside the same output.
pub(super) const FETCHED: u128 = 1 << 127;

/// Returns the id of a transfer, which is in the names of its files.
///
/// The id is a digest, so that the session, which only the sender and its receiver know, cannot be
/// read from the names of files: a program that knows the session could continue the transfer in
/// the sender's place. With TLS, the id depends on the sender's certificate, too, so that the
/// session alone does not suffice. It does not depend on the address: a sender may come back by
/// another network.
pub(super) fn transfer_id(session: u128, certificate_names: &[String]) -> u128 {
    let mut hash = Context::new(&SHA256);
    hash.update(&session.to_be_bytes());
    for name in certificate_names {
        hash.update(&(name.len() as u64).to_be_bytes());
        hash.update(name.as_bytes());
    }
    let id: u128 = hash.finish().as_ref().iter().take(16).fold(0, |id, &byte| id << 8 | u128::from(byte));
    id & !FETCHED
}

/// Returns the transfer that gives way to a new one of `newcomer`: of the owner that has the most,
/// the new one included, the transfer whose last frame is the oldest.
///
/// So an owner of many transfers, however they trickle, ends its own. How much has been written
/// does not count: an honest transfer that has just begun has written little.
pub(super) fn gives_way<'t>(
    newcomer: &Owner,
    transfers: impl Iterator<Item = (u128, &'t Owner, Instant)> + Clone,
) -> Option<u128> {
    let share = |owner: &Owner| {
        transfers.clone().filter(|&(_, other, _)| other == owner).count() + usize::from(owner == newcomer)
    };
    let greatest = transfers.clone().max_by_key(|&(_, owner, last)| (share(owner), Reverse(last)));
    greatest.map(|(id, ..)| id)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_id_depends_on_session_and_certificate() {
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let ids = [
            transfer_id(7, &[]),
            transfer_id(8, &[]),
            transfer_id(7, &names(&["a"])),
            transfer_id(7, &names(&["a", "b"])),
            transfer_id(7, &names(&["ab"])),
        ];
        for (place, id) in ids.iter().enumerate() {
            assert!(!ids[..place].contains(id) && *id != 7 && id & FETCHED == 0, "{place}");
        }
    }

    #[test]
    fn of_the_owner_with_the_most_transfers_the_stillest_gives_way() {
        type Transfers = &'static [(u8, u64)];
        let start = Instant::now();
        let owner = |number| Owner::Address(IpAddr::from([10, 9, 0, number]));
        // Owners of the transfers 0, 1, …, each with the seconds after which its last frame came.
        let cases: [(u8, Transfers, Option<u128>); 6] = [
            (1, &[], None),
            (1, &[(2, 5), (2, 4), (3, 0)], Some(1)),
            // Two owners have as many, with the new one.
            (2, &[(2, 9), (3, 0), (3, 1)], Some(1)),
            (2, &[(2, 9), (2, 8), (3, 0)], Some(1)),
            (1, &[(2, 5), (3, 4), (4, 6)], Some(1)),
            (1, &[(1, 9), (2, 0)], Some(0)),
        ];
        for (newcomer, transfers, expected) in cases {
            let owners: Vec<Owner> = transfers.iter().map(|&(number, _)| owner(number)).collect();
            let all = (0..).zip(&owners).zip(transfers);
            let all = all.map(|((id, owner), &(_, last))| (id, owner, start + Duration::from_secs(last)));
            assert_eq!(gives_way(&owner(newcomer), all), expected, "{newcomer}: {transfers:?}");
        }
    }
}
