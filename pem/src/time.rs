//! When a chain is valid.

use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage};

use crate::FileProblem;

/// Finds why a chain cannot be used now: its first certificate has expired, or is not valid yet. The others do not count:
/// many chains end in an expired one that their clients do without.
pub fn validity_problem(chain: &[CertificateDer<'_>], now: UnixTime) -> Option<FileProblem> {
    chain.first().and_then(|certificate| {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        // A certificate's time is the first that is looked at. That nobody vouches for it comes after that.
        let verified = certificate.verify_for_usage(&[], &[], &[], now, KeyUsage::server_auth(), None, None);
        match verified.err()? {
            Error::CertExpired { time, not_after } => Some(FileProblem::Expired(elapsed(not_after, time))),
            Error::CertNotValidYet { time, not_before } => {
                Some(FileProblem::TooEarly(elapsed(time, not_before)))
            }
            _ => None,
        }
    })
}

/// Finds why the chain `new` must not replace `old`: it is outdated, and `old` is not.
pub fn replacement_problem(
    old: &[CertificateDer<'_>],
    new: &[CertificateDer<'_>],
    now: UnixTime,
) -> Option<FileProblem> {
    validity_problem(new, now).filter(|_| validity_problem(old, now).is_none())
}

fn elapsed(from: UnixTime, to: UnixTime) -> Duration {
    Duration::from_secs(to.as_secs().saturating_sub(from.as_secs()))
}

#[cfg(test)]
mod tests {
    use multinet_testing::pki::Authority;
    use rcgen::date_time_ymd;

    use super::*;

    /// A certificate of the years 2024 and 2025, below an authority.
    fn chain() -> Vec<CertificateDer<'static>> {
        let issued = Authority::new().below("between").issue_as(&["dns.test"], |params| {
            (params.not_before, params.not_after) = (date_time_ymd(2024, 1, 1), date_time_ymd(2026, 1, 1));
        });
        crate::certificates(issued.chain.as_bytes()).unwrap()
    }

    /// A first of January.
    fn year(year: i32) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(date_time_ymd(year, 1, 1).unix_timestamp() as u64))
    }

    #[test]
    fn a_chain_is_outdated_before_and_after_its_time() {
        let chain = chain();
        assert_eq!(chain.len(), 2);
        let days = |days: u64| Duration::from_secs(days * 86_400);
        assert!(
            matches!(validity_problem(&chain, year(2023)), Some(FileProblem::TooEarly(by)) if by == days(365))
        );
        assert!(validity_problem(&chain, year(2025)).is_none());
        assert!(
            matches!(validity_problem(&chain, year(2027)), Some(FileProblem::Expired(by)) if by == days(365))
        );
        assert!(validity_problem(&[], year(2025)).is_none());
    }

    #[test]
    fn a_chain_that_is_valid_gives_way_only_to_one_that_is() {
        let old = Authority::new().issue(&["dns.test"]);
        let old = crate::certificates(old.chain.as_bytes()).unwrap();
        assert!(replacement_problem(&old, &chain(), year(2025)).is_none());
        for at in [2023, 2027] {
            assert!(replacement_problem(&old, &chain(), year(at)).is_some(), "{at}");
            assert!(replacement_problem(&chain(), &chain(), year(at)).is_none(), "{at}");
            assert!(replacement_problem(&chain(), &old, year(at)).is_none(), "{at}");
        }
    }
}
